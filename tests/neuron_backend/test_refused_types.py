"""Element types that torch has no kernel for are refused in its own words, and not computed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

import neuron_backend
from neuron_backend.lowering import refused_types

if TYPE_CHECKING:
    from collections.abc import Callable

_VOLUME = torch.arange(32).reshape(1, 2, 4, 4)

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "softplus": functional.softplus,
    "hardshrink": functional.hardshrink,
    "hardswish": functional.hardswish,
    "glu": lambda x: functional.glu(x, 1),
    "frac": torch.frac,
    "huber_loss": lambda x: functional.huber_loss(x, x),
    "interpolate, nearest": lambda x: functional.interpolate(x, scale_factor=2),
    "interpolate, bilinear": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "var": lambda x: x.var(),
    "std": lambda x: x.std(),
    "relu": torch.relu,
    "round": torch.round,
    "<": lambda x: x < x.flip(0),
    "atan2": lambda x: torch.atan2(x, x),
    "fmod": lambda x: torch.fmod(x, x + 1),
    "remainder": lambda x: torch.remainder(x, x + 1),
}


def _outcome(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> str | torch.Tensor:
    try:
        result: torch.Tensor = function(x)
    except (NotImplementedError, RuntimeError) as error:
        return str(error).partition("\n")[0]
    return result.cpu()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.share(12)
def test_what_torch_has_no_kernel_for_is_refused_in_its_words(name: str, dtype: torch.dtype) -> None:
    given = _VOLUME.to(dtype)
    expected = _outcome(CALLS[name], given)
    neuron_backend.clear_fallback_ops()
    found = _outcome(CALLS[name], given.to("neuron"))
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected
        assert neuron_backend.get_fallback_ops() == {}


@pytest.mark.parametrize("name", ["softmax", "var", "<"])
def test_a_compiled_graph_refuses_it_too(name: str) -> None:
    given = _VOLUME.to(torch.complex64 if name == "<" else torch.int64).to("neuron")
    compiled = torch.compile(CALLS[name], backend="neuron")
    with pytest.raises((NotImplementedError, RuntimeError), match="not implemented|not there|only support"):
        compiled(given)


def test_every_operator_of_the_table_is_one_of_torchs() -> None:
    """A name that torch does not have would refuse nothing, without a word."""
    for name in refused_types.OPERATORS:
        assert hasattr(torch.ops.aten, name), name
