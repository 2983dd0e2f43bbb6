"""Torch-MLIR as a second opinion on what can be lowered; it may crash natively, in its own child processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import resource
import tempfile
import warnings
from typing import TYPE_CHECKING, Any

import torch
from jaxlib.mlir import ir
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch.nn.attention import SDPBackend, sdpa_kernel

from client.names import Kind
from neuron_backend import programs
from neuron_backend.lowering import is_random, trim
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.pipeline import context, finish
from tests.sweep.comparing import difference
from tests.sweep.outcome import NO_REFERENCE, OK, UNSUPPORTED, WRONG, Outcome
from tests.sweep.reference import gradients, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.fx import GraphModule

    from neuron_backend.module import Module
    from tests.sweep.entries import Sample


# Of a child process, in bytes: for the gradient of `trapz`, say, it takes all there is.
MOST_MEMORY = 8 << 30

_FIRST_ERROR = re.compile(r"error: ([^\n]*)")
_OPERATOR = re.compile(r"torch\.((?:aten|prims?)\.[\w.]+)")


def installed() -> bool:
    return importlib.util.find_spec("torch_mlir") is not None


def _lowered(graph: GraphModule) -> Module:
    """Return what Torch-MLIR makes of the graph, in the form that our own lowering has.

    Its constants are ``arith``'s, which no portable artifact holds; written as StableHLO's they mean the same.
    """
    from torch_mlir import fx  # noqa: PLC0415 - an optional package, not there on most machines

    with warnings.catch_warnings(), tempfile.TemporaryFile() as diagnostics, _standard_error(diagnostics.fileno()):
        warnings.simplefilter("ignore")
        try:
            text = fx.stateless_fx_import(graph, output_type="stablehlo").operation.get_asm(enable_debug_info=False)
        except Exception as error:
            diagnostics.seek(0)
            raise Refused(_reason(diagnostics.read().decode(errors="replace")) or str(error)) from error
    with context() as messages:
        module = ir.Module.parse(text.replace("arith.constant dense<", "stablehlo.constant dense<"))
        return finish(module, messages)


def _reason(diagnostics: str) -> str:
    """Return the first error among ``diagnostics``: of an operator just its name and what became of it."""
    error = _FIRST_ERROR.search(diagnostics)
    if error is None:
        return ""
    operator = _OPERATOR.search(error.group(1))
    what = error.group(1).partition(":")[0]
    return f"{operator.group(1)}: {what}" if operator else error.group(1)


def _decompositions() -> dict[Any, Any]:
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table  # noqa: PLC0415

    return {**core_aten_decompositions(), **get_decomposition_table()}


@contextlib.contextmanager
def _standard_error(descriptor: int) -> Iterator[None]:
    """Have the process's standard error go to ``descriptor``: Torch-MLIR says there, natively, what was wrong."""
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class _Compiler:
    """Compiles graphs as Torch-MLIR lowers them; remembers whether one draws random numbers."""

    def __init__(self) -> None:
        self.random = False

    def __call__(self, graph: GraphModule, _examples: Sequence[Any]) -> Callable[..., Any]:
        self.random |= any(is_random(node.target) for node in graph.graph.nodes if node.op == "call_function")
        results = trim(graph)
        executable = programs.get(Kind.GRAPH, _lowered(graph))

        def run(*arguments: torch.Tensor) -> list[torch.Tensor | None]:
            answer: list[torch.Tensor | None] = [None] * results.count
            computed = executable([each.detach().resolve_conj().resolve_neg().contiguous() for each in arguments])
            for position, value in zip(results.positions, computed, strict=True):
                answer[position] = value
            return answer

        return make_boxed_func(run)


def check(name: str, sample: Sample, *, gradient: bool) -> Outcome:
    """Compare the entry's graphs, lowered by Torch-MLIR and compiled as ours are, with the CPU.

    The process may take no more than `MOST_MEMORY` from then on.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    expected = reference(sample, gradient=gradient)
    if isinstance(expected, str):
        return Outcome(name, NO_REFERENCE, expected)
    compiler = _Compiler()

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        result = sample.run(tensors)
        return sample.differentiable(result) if gradient else sample.comparable(result)

    compiled: Any = aot_function(function, compiler, decompositions=_decompositions())
    copies = [each.detach().clone().requires_grad_(gradient and each.requires_grad) for each in sample.tensors]
    try:
        torch.manual_seed(1)
        with sdpa_kernel([SDPBackend.MATH]):
            results = list(compiled(*copies))
            if gradient:
                results += gradients(results, copies)
    except Refused as refusal:
        return Outcome(name, UNSUPPORTED, " ".join(str(refusal).split()))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the table has to say
        return Outcome(name, UNSUPPORTED, f"{type(error).__name__}: {' '.join(str(error).split())}")
    text = difference(
        results, expected.results, shapes_only=compiler.random or sample.shapes_only, precise=expected.precise
    )
    return Outcome(name, WRONG, text) if text else Outcome(name, OK)
