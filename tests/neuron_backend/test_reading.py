"""Code that reads a value while nothing is computed is told so, whichever way it reads: it is given no zero instead."""

from __future__ import annotations

import copy
import io
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch

import neuron_backend
from neuron_backend import programs
from neuron_backend.eager import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = torch.zeros(3)


@pytest.fixture(autouse=True)
def _fresh(tmp_path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_CACHE_NODE_DIR", str(tmp_path / "node"))
        yield
    torch._dynamo.reset()
    dispatch.clear()


def error_of(function: Callable[[torch.Tensor], Any], *, as_is: bool) -> str | None:
    report = neuron_backend.compile_only(function, [(torch.ones(3),)], as_is=as_is, compile=False, environ=os.environ)
    return report.buckets[0].error


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cpu": lambda x: (x * 2).cpu(),
    "to": lambda x: (x * 2).to("cpu", torch.float64),
    "copy into a host tensor": lambda x: HOST.copy_(x) + 1,
    "copy of a list": lambda x: torch._foreach_copy_([HOST], [x]),
    "numpy": lambda x: (x * 2).cpu().numpy(),
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x.sum().item(),
    "branch": lambda x: x + 1 if x.sum() > 0 else x,
    "print": lambda x: f"{x}",
    "save": lambda x: torch.save(x, io.BytesIO()),
    "storage": lambda x: x.untyped_storage().cpu(),
}


@pytest.mark.parametrize("read", [pytest.param(function, id=name) for name, function in READS.items()])
def test_operator_by_operator_a_read_is_refused(read):
    error = error_of(read, as_is=True)
    assert error is not None
    assert error.startswith("ValueNeeded: ")
    assert "a prewarm computes none: leave it out of the entry point" in error
    assert HOST.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["cpu", "to", "copy into a host tensor", "numpy"])
def test_a_compiled_graph_that_ends_in_a_copy_to_the_host_is_refused(name):
    error = error_of(READS[name], as_is=False)
    assert error is not None
    assert "ValueNeeded: a copy to the CPU asks for a value" in error


def keeps_a_host_scalar(x: torch.Tensor) -> torch.Tensor:
    """Its graph has a result on the host, to be used by the backward, that no value of the device went into."""
    return (x * torch.tensor(0.5, device="cpu").exp()).sum()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: copy.deepcopy(x) + 1,
        lambda x: x.to("neuron", torch.bfloat16) + 1,
        lambda x: x.clone().copy_(x * 2),
        lambda x: [row + 1 for row in x],
        keeps_a_host_scalar,
    ],
)
@pytest.mark.parametrize("as_is", [True, False])
@pytest.mark.share(3)
def test_what_stays_on_the_device_or_was_on_the_host_before_is_not_refused(function, as_is):
    if function is keeps_a_host_scalar and not as_is:
        x = torch.ones(3, requires_grad=True)
        report = neuron_backend.compile_only(function, [(x,)], backward=True, compile=False)
        assert report.buckets[0].error is None
    else:
        assert error_of(function, as_is=as_is) is None


def test_what_comes_from_the_host_meanwhile_has_its_values_afterwards():
    kept = {}

    def function(x: torch.Tensor) -> torch.Tensor:
        kept.setdefault("mask", torch.tensor([1.0, 2.0, 3.0]).to("neuron"))  # as a model does that makes it lazily
        return x + kept["mask"]

    assert error_of(function, as_is=True) is None
    assert not programs.recording()
    assert kept["mask"].tolist() == [1, 2, 3]  # and values can be read again
    assert (torch.ones(3, device="neuron") * 2).cpu().tolist() == [2, 2, 2]
