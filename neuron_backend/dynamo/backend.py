"""Dynamo graph -> AOTAutograd -> forward and backward programs, each compiled through the cache as one entry."""

from __future__ import annotations

import copy
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend import _autoload, programs
from neuron_backend.dynamo.border import Sight, take_border
from neuron_backend.dynamo.calling import Pending, bind
from neuron_backend.dynamo.options import Options, refuse_dynamic
from neuron_backend.dynamo.partition import partition
from neuron_backend.dynamo.places import APART, ByPlace, Layout
from neuron_backend.dynamo.specialise import concrete, has_symbols, specialised
from neuron_backend.eager import record_fallback
from neuron_backend.lowering import (
    TRACING,
    NotLowered,
    UnsupportedOperator,
    decompositions_for_graphs,
    draws_of,
    lower,
    take_checks,
    trim,
    used_inputs,
    without_checks,
)
from neuron_backend.torch_private import (
    CompileContext,
    FakeTensorMode,
    TracingContext,
    aot_autograd,
    dynamo_config,
    make_boxed_func,
    tracing,
)
from neuron_backend.value_checks import asked_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
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
    """Compile ``graph`` for these inputs, and see to it that it is right for others that Dynamo calls alike."""
    sight = Sight()
    context = TracingContext.try_get() or _own_context()  # there is none where sizes changed between calls
    because, known = "", APART
    compiled: Callable[..., Any] | None = None
    try:
        with tracing(context):
            compiled = _aot_compiled(graph, example_inputs, sight, options=options, name=name)
    except AssertionError as error:  # what AOTAutograd has for inputs that overlap in a way it does not know
        layout = Layout.of(example_inputs, frozenset(range(len(example_inputs))))
        if layout.pattern_of_examples(example_inputs) == APART:
            raise
        because = f" (AOTAutograd: {error})"
    else:
        forward, written = _written(context.fw_metadata, len(example_inputs))
        layout = Layout.of(example_inputs, written)
        # AOTAutograd looks at overlaps with what the forward writes, and takes what only the backward writes for apart
        known = Layout.of(example_inputs, forward).pattern_of_examples(example_inputs)
        if sight.outside and layout.writes:
            reason = "it writes by strides to the storage of an input, which may be more than the input shows"
            return _plain(
                concrete(graph), UnsupportedOperator("aten.as_strided.default", reason), f"graph {name}", options
            )
        if not sight.place and not layout.can_overlap:
            return compiled

    def compile_apart(arguments: Sequence[Any]) -> Callable[..., Any]:
        with tracing(_own_context()):
            return _aot_compiled(concrete(graph), arguments, Sight(), options=options, name=name)

    offsets = layout.offsets(example_inputs) if sight.place else ()
    return ByPlace(
        name=name,
        layout=layout,
        by_offset=sight.place,
        compiled={} if compiled is None else {(known, offsets): compiled},
        plain=concrete(graph).forward,
        compile_apart=compile_apart,
        fallback=options.fallback,
        because=because,
    )


def _own_context() -> TracingContext:
    """Return what AOTAutograd notes its findings in, where Dynamo is not there to have one."""
    return TracingContext(FakeTensorMode())


def _aot_compiled(
    graph: GraphModule, example_inputs: Sequence[Any], sight: Sight, *, options: Options, name: str
) -> Callable[..., Any]:
    pending = Pending()

    def forward(graph: GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        sight.add(graph)
        return _program(graph, examples, pending, name=f"forward graph {name}", options=options)

    def backward(graph: GraphModule, examples: Sequence[Any]) -> Callable[[list[Any]], Any]:
        return _program(graph, examples, pending, name=f"backward graph {name}", options=options)

    def cut(joint: GraphModule, joint_inputs: Sequence[Any], **how: Any) -> tuple[GraphModule, GraphModule]:
        sight.add(joint)
        return partition(joint, joint_inputs, **how)

    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=cut,
        decompositions=decompositions_for_graphs(),
        keep_inference_input_mutations=False,
    )
    with TRACING:
        compiled: Callable[..., Any] = compiler(graph, example_inputs)
    if dynamo_config.suppress_errors:
        pending.compile()
    return compiled


def _written(metadata: ViewAndMutationMeta | None, count: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return which of ``count`` inputs the forward writes to, and which that or the backward; all, if not known."""
    everything = frozenset(range(count))
    if metadata is None:
        return everything, everything
    forward = frozenset(position for position, info in enumerate(metadata.input_info) if info.mutates_data)
    written = forward.union(metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw)
    # where some of the first call's inputs were the same, or overlapped, AOTAutograd has put others in their place
    return (everything, everything) if written and len(metadata.input_info) != count else (forward, written)


def _program(
    graph: GraphModule, _example_inputs: Sequence[Any], pending: Pending, *, name: str, options: Options
) -> Callable[[list[Any]], Any]:
    """Lower one of AOTAutograd's graphs, to be compiled with those that are ``pending``."""
    lowered = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    try:
        border = take_border(lowered)
        look = asked_for()
        if not look:
            without_checks(lowered)
        checks = take_checks(lowered)
        results = trim(lowered).without(len(checks))
        used = used_inputs(lowered)
        draws = draws_of(lowered)
        nothing = not (results.positions or checks or draws)
        module = None if nothing and not look else lower(lowered, float64=programs.has_float64(), checks=look)
        program = None if module is None or (nothing and not module.checks) else pending.add(module)
    except NotLowered as error:
        return make_boxed_func(_plain(graph, error, name, options))
    return make_boxed_func(bind(program, graph, border, used, results, draws, checks))


def _plain(graph: GraphModule, error: NotLowered, name: str, options: Options) -> Callable[..., Any]:
    """Return ``graph`` to be run operator by operator, on the tensors themselves, or raise if that is not wanted."""
    named = error.in_graph(name)
    programs.unsupported(named)
    if not options.fallback:
        raise named from error
    if not error.invalid:  # else the operator itself will say what is wrong
        record_fallback(named.operator, f"its graph runs operator by operator: {named}")
    return graph.forward
