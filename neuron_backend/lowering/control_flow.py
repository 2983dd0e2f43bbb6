"""Operators that take graphs: each graph becomes a region of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array
from neuron_backend.lowering.dtypes import tensor_type
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.loops import while_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule

    from neuron_backend.module import TensorSpec

    Inside = Callable[[GraphModule, Sequence[Any]], list[Array]]


def takes_graphs(target: Any) -> bool:
    """Whether ``target`` is an operator for which `control_flow` has a lowering."""
    return isinstance(target, torch._ops.HigherOrderOperator) and str(target) in _LOWERINGS  # noqa: SLF001


def control_flow(
    target: Any, inside: Inside, expected: Sequence[TensorSpec | None], arguments: Sequence[Any]
) -> tuple[Array, ...]:
    """Lower one call; ``inside`` builds a graph on arguments at the current insertion point."""
    specs = [spec for spec in expected if spec is not None]
    if len(specs) != len(expected):
        raise Refused("it returns something that is no tensor")
    return tuple(_LOWERINGS[str(target)](inside, specs, *arguments))


def _fit(results: Sequence[Array], specs: Sequence[TensorSpec]) -> list[Array]:
    if [(each.dtype, each.shape) for each in results] != [(spec.dtype, spec.shape) for spec in specs]:
        raise Refused("one of its graphs returns other types or shapes than it does")
    return list(results)


def _predicate(results: Sequence[Any]) -> Array:
    (result,) = results
    if not isinstance(result, Array) or result.size != 1:
        raise Refused("its condition is no tensor of one element")
    return result.to(torch.bool).reshape(())


def _cond(  # noqa: PLR0917 - the operator's own order
    inside: Inside,
    specs: Sequence[TensorSpec],
    predicate: Any,
    if_true: GraphModule,
    if_false: GraphModule,
    operands: Sequence[Any] = (),
) -> list[Array]:
    operation = hlo.IfOp([tensor_type(spec.shape, spec.dtype) for spec in specs], _predicate([predicate]).value)
    for region, graph in zip(operation.regions, (if_true, if_false), strict=True):
        with ir.InsertionPoint(region.blocks.append()):
            hlo.return_([each.value for each in _fit(inside(graph, operands), specs)])
    return [Array(value, spec.dtype, spec.shape) for value, spec in zip(operation.results, specs, strict=True)]


def _while_loop(  # noqa: PLR0917 - the operator's own order
    inside: Inside,
    specs: Sequence[TensorSpec],
    condition: GraphModule,
    body: GraphModule,
    carried: Sequence[Any],
    captured: Sequence[Any] = (),
) -> list[Array]:
    if not all(isinstance(each, Array) for each in carried):
        raise Refused("it carries something that is no tensor")
    return while_loop(
        _fit(carried, specs),
        lambda *inner: _predicate(inside(condition, (*inner, *captured))),
        lambda *inner: _fit(inside(body, (*inner, *captured)), specs),
    )


_LOWERINGS: dict[str, Callable[..., list[Array]]] = {
    "cond": _cond,
    "while_loop": _while_loop,
}
