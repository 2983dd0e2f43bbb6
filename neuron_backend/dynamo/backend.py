"""Dynamo graph -> AOTAutograd -> forward and backward programs, each compiled through the cache as one entry."""

from __future__ import annotations

import copy
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
from torch._guards import CompileContext
from torch.nn.attention import SDPBackend, sdpa_kernel

from client.names import Kind
from neuron_backend import _autoload, programs
from neuron_backend.dynamo.calling import bind
from neuron_backend.dynamo.options import Options, refuse_dynamic
from neuron_backend.dynamo.partition import partition
from neuron_backend.dynamo.specialise import has_symbols, specialised
from neuron_backend.eager import record_fallback
from neuron_backend.lowering import (
    TRACING,
    UnsupportedOperator,
    decompositions,
    draws_of,
    lower,
    take_checks,
    trim,
    used_inputs,
    without_checks,
)
from neuron_backend.value_checks import asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.fx import GraphModule


def compile_graph(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return a function that runs ``graph`` as compiled programs.

    Raises RuntimeError where the device is not there, `client.errors.ConfigurationError` for sizes that are to be
    dynamic and for options and modes that this backend does not know, `UnsupportedOperator` if an operator has no
    lowering and fallback is off, `client.errors.CompileError` if the compiler fails.
    """
    if not _autoload.state.registered:
        raise RuntimeError(f'torch.compile(backend="neuron") has no device: {_autoload.state.reason}')
    refuse_dynamic(graph)
    compile_static = partial(_compile_static, options=Options.read(mode, options, os.environ), name=_name())
    if has_symbols(example_inputs):
        # a size that changed between calls: Dynamo now passes it as a symbol, we compile each value that comes
        return specialised(graph, compile_static)
    return compile_static(graph, example_inputs)


def _name() -> str:
    """Return what Dynamo calls the graph in its own logs, ``0/0`` for the first one of the first function."""
    return str(CompileContext.current_compile_id() or "?")


def _compile_static(
    graph: GraphModule, example_inputs: Sequence[Any], *, options: Options, name: str
) -> Callable[..., Any]:
    compiler = aot_autograd(
        fw_compiler=partial(_program, name=f"forward graph {name}", options=options),
        bw_compiler=partial(_program, name=f"backward graph {name}", options=options),
        partition_fn=partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=False,
    )
    # the fused attention kernels of the CPU have backward operators of their own, that no Neuron compiler knows
    with TRACING, sdpa_kernel([SDPBackend.MATH]):
        return compiler(graph, example_inputs)


def _program(
    graph: GraphModule, _example_inputs: Sequence[Any], *, name: str, options: Options
) -> Callable[[list[Any]], Any]:
    """Lower and compile one of AOTAutograd's graphs."""
    lowered = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    try:
        look = asked_for()
        if not look:
            without_checks(lowered)
        checks = take_checks(lowered)
        results = trim(lowered).without(len(checks))
        used = used_inputs(lowered)
        executable = programs.get(Kind.GRAPH, lower(lowered, float64=programs.has_float64(), checks=look))
        draws = draws_of(lowered)
    except UnsupportedOperator as error:
        named = error.in_graph(name)
        programs.unsupported(named)
        if not options.fallback:
            raise named from error
        if not error.invalid:  # else the operator itself will say what is wrong
            record_fallback(named.operator, f"its graph runs operator by operator: {named}")
        return make_boxed_func(graph.forward)
    return make_boxed_func(bind(executable, graph, used, results, draws, checks))
