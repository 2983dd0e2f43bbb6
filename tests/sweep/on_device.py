"""The eager path: the entry on neuron tensors, forward and backward, against the CPU."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import neuron_backend
from tests.sweep.comparing import difference
from tests.sweep.entries import DEVICE, on_neuron
from tests.sweep.outcome import HOST, NO_REFERENCE, OK, UNSUPPORTED, WRONG, Outcome
from tests.sweep.reference import gradients, reference

if TYPE_CHECKING:
    from tests.sweep.entries import Sample


def check(name: str, sample: Sample, *, gradient: bool) -> Outcome:
    """Compare the entry on the device with the CPU, and say which operators ran on the host."""
    expected = reference(sample, gradient=gradient)
    if isinstance(expected, str) and gradient:
        gradient = False
        expected = reference(sample, gradient=False)
    if isinstance(expected, str):
        return Outcome(name, NO_REFERENCE, expected)
    neuron_backend.clear_fallback_ops()
    try:
        copies = sample.placed(gradient=gradient)
        torch.manual_seed(1)
        with warnings.catch_warnings(), sdpa_kernel([SDPBackend.MATH]):
            warnings.simplefilter("ignore")
            result = sample.run(copies, on_neuron)
            results: list[Any] = list(sample.comparable(result))
            if gradient:
                results = list(sample.differentiable(result))
                results += gradients(results, copies)
            tensors = [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)]
            elsewhere = {each.device.type for each in tensors} - {DEVICE}
            ran = neuron_backend.get_fallback_ops()
            drawn = sample.shapes_only or _random(sample)
            text = difference(results, expected.results, shapes_only=drawn, precise=expected.precise)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the table has to say
        return Outcome(name, UNSUPPORTED, f"{type(error).__name__}: {' '.join(str(error).split())}")
    if elsewhere:
        return Outcome(name, WRONG, f"results on {', '.join(sorted(elsewhere))}")
    if text:
        return Outcome(name, WRONG, text)
    return Outcome(name, HOST, " ".join(sorted(ran))) if ran else Outcome(name, OK)


class _Watch(TorchDispatchMode):
    """Notices operators that draw random numbers: those of the device are not the CPU's, whatever the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.random = False

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.random |= torch.Tag.nondeterministic_seeded in operator.tags
        return operator(*args, **(kwargs or {}))


def _random(sample: Sample) -> bool:
    """Whether the sample draws random numbers on the CPU: then values are not for comparing."""
    with torch.no_grad(), _Watch() as watch:
        sample.run([each.detach().clone() for each in sample.tensors])
    return watch.random
