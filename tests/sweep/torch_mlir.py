"""Torch-MLIR as a second opinion on what can be lowered; it may crash natively, in its own child processes."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch.nn.attention import SDPBackend, sdpa_kernel

from neuron_backend.lowering import trim
from tests.sweep.outcome import NO_REFERENCE, OK, UNSUPPORTED, Outcome
from tests.sweep.reference import gradients, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch.fx import GraphModule

    from tests.sweep.entries import Sample


def installed() -> bool:
    return importlib.util.find_spec("torch_mlir") is not None


def check(name: str, sample: Sample, *, gradient: bool) -> Outcome:
    """Say whether Torch-MLIR lowers the entry's graphs to StableHLO; they are not run."""
    from torch_mlir import fx  # noqa: PLC0415 - an optional package, not there on most machines

    expected = reference(sample, gradient=gradient)
    if isinstance(expected, str):
        return Outcome(name, NO_REFERENCE, expected)

    def compiler(graph: GraphModule, _examples: Sequence[Any]) -> Callable[..., Any]:
        trim(graph)
        fx.stateless_fx_import(graph, output_type="stablehlo")
        return make_boxed_func(graph.forward)

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        result = sample.run(tensors)
        return sample.differentiable(result) if gradient else sample.comparable(result)

    compiled: Any = aot_function(function, compiler, decompositions=core_aten_decompositions())
    copies = [each.detach().clone().requires_grad_(gradient and each.requires_grad) for each in sample.tensors]
    try:
        with sdpa_kernel([SDPBackend.MATH]):
            results = list(compiled(*copies))
            if gradient:
                gradients(results, copies)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the table has to say
        return Outcome(name, UNSUPPORTED, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Outcome(name, OK)
