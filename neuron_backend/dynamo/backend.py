"""Dynamo graph -> AOTAutograd -> forward and backward programs, each compiled through the cache as one entry."""

from __future__ import annotations

import copy
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
from torch.nn.attention import SDPBackend, sdpa_kernel

from client.names import Kind
from neuron_backend import _autoload, programs
from neuron_backend.dynamo.calling import bind
from neuron_backend.dynamo.specialise import has_symbols, specialised
from neuron_backend.eager import record_fallback
from neuron_backend.lowering import UnsupportedOperator, decompositions, lower, trim, used_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule

GRAPH_FALLBACK = "NEURON_BACKEND_GRAPH_FALLBACK"
"""Set to 0, a graph with an unsupported operator raises instead of running operator by operator."""

_warned_modes: set[str] = set()
_lock = threading.Lock()


def compile_graph(
    graph: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Any = None
) -> Callable[..., Any]:
    """Return a function that runs ``graph`` as compiled programs.

    Raises RuntimeError where the device is not there, for ``dynamic=True`` and for options this backend does not know,
    `UnsupportedOperator` if an operator has no lowering and fallback is off, `client.errors.CompileError` if the
    compiler fails.
    """
    if not _autoload.state.registered:
        raise RuntimeError(f'torch.compile(backend="neuron") has no device: {_autoload.state.reason}')
    if not torch._dynamo.config.assume_static_by_default:  # noqa: SLF001 - how Dynamo hands dynamic=True on
        raise RuntimeError(
            "dynamic=True is not supported on neuron: a program has fixed shapes, and every new shape is a new "
            "compile. Leave dynamic out; pad inputs to a few bucket sizes to bound the number of compiles"
        )
    if options:
        raise RuntimeError(f"backend neuron knows no options, but was given {sorted(options)}: leave them out")
    if mode not in (None, "default"):
        _warn_mode(str(mode))
    if has_symbols(example_inputs):
        # a size that changed between calls: Dynamo now passes it as a symbol, we compile each value that comes
        return specialised(graph, _compile_static)
    return _compile_static(graph, example_inputs)


def _warn_mode(mode: str) -> None:
    with _lock:
        if mode in _warned_modes:
            return
        _warned_modes.add(mode)
    warnings.warn(f"backend neuron has one mode: mode={mode!r} changes nothing", stacklevel=2)


def _compile_static(graph: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    compiler = aot_autograd(fw_compiler=_program, decompositions=decompositions(), keep_inference_input_mutations=False)
    # the fused attention kernels of the CPU have backward operators of their own, that no Neuron compiler knows
    with sdpa_kernel([SDPBackend.MATH]):
        return compiler(graph, example_inputs)


def _program(graph: GraphModule, _example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """Lower and compile one of AOTAutograd's graphs."""
    lowered = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    try:
        results = trim(lowered)
        used = used_inputs(lowered)
        executable = programs.get(Kind.GRAPH, lower(lowered))
    except UnsupportedOperator as error:
        if os.environ.get(GRAPH_FALLBACK, "1") == "0":
            raise
        record_fallback(error.operator, f"its graph runs operator by operator: {error}")
        return make_boxed_func(graph.forward)
    return make_boxed_func(bind(executable, graph, used, results))
