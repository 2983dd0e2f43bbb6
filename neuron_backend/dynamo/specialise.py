"""Sizes that change between calls: one compile for each value that really comes.

Once a size has changed, Dynamo passes it as a symbol. A Neuron program has fixed shapes, so the symbolic graph is kept
and specialised to each set of concrete inputs: as often as Dynamo itself would compile a function again. An integer
that is only computed with, such as a place in a cache, is no size: it becomes a tensor without dimensions.
"""

from __future__ import annotations

import copy
import operator
import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.torch_private import dynamo_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule


def has_symbols(example_inputs: Sequence[Any]) -> bool:
    """Return whether any input is, or has a size, stride or offset that is, a symbol."""
    return any(_is_symbolic(value) for value in example_inputs)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _signature(arguments: Sequence[Any]) -> tuple[Any, ...]:
    described = (
        (tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad)
        if isinstance(value, torch.Tensor)
        else (type(value), value)
        for value in arguments
    )
    return (torch.is_grad_enabled(), *described)


def specialised(
    graph: GraphModule, compile_static: Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return a function that compiles ``graph`` with ``compile_static`` once for each set of concrete sizes.

    Beyond ``torch._dynamo.config.recompile_limit`` sets it does what Dynamo does: it runs the rest operator by
    operator, with one warning, or raises RuntimeError where ``fail_on_recompile_limit_hit`` is set.
    """
    compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
    told = threading.Event()
    lock = threading.Lock()
    numbers = _computed_with(graph)

    def run(*given: Any) -> Any:
        arguments = given
        if numbers:
            arguments = tuple(_number(each) if index in numbers else each for index, each in enumerate(given))
        signature = _signature(arguments)
        function = compiled.get(signature)
        if function is None:
            with lock:
                function = compiled.get(signature)
                if function is None:
                    if len(compiled) >= dynamo_config.recompile_limit:
                        _limit_reached(arguments, told)
                        return graph.forward(*given)
                    function = compiled[signature] = compile_static(concrete(graph), arguments)
        return function(*arguments)

    return torch._dynamo.disable(run, reason="compiles for concrete sizes")  # type: ignore[no-untyped-call,no-any-return]  # noqa: SLF001


def _number(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64, device="cpu")


def _computed_with(graph: GraphModule) -> frozenset[int]:
    """Return which inputs are integers whose value nothing but arithmetic with tensors of some dimension depends on.

    There a tensor of int64 without dimensions means the same: it takes no part in the choice of a type within its kind.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    return frozenset(
        index
        for index, node in enumerate(placeholders)
        if isinstance(node.meta.get("example_value"), torch.SymInt) and _only_computed_with(node)
    )


def _only_computed_with(node: torch.fx.Node) -> bool:
    return bool(node.users) and all(map(_is_arithmetic, node.users))


_ARITHMETIC = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
        *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
        *(torch.add, torch.sub, torch.mul, torch.div, torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne),
    }
)


# Of integers among themselves: what these give is computed with in turn.
_AMONG_INTEGERS = frozenset({operator.add, operator.sub, operator.mul})


def _is_arithmetic(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or node.target not in _ARITHMETIC or node.kwargs or len(node.args) != 2:  # noqa: PLR2004
        return False
    values = [each.meta.get("example_value") if isinstance(each, torch.fx.Node) else each for each in node.args]
    if any(isinstance(value, torch.Tensor) for value in values):
        return any(isinstance(value, torch.Tensor) and value.dim() for value in values)
    return node.target in _AMONG_INTEGERS and _only_computed_with(node)


def _limit_reached(arguments: Sequence[Any], told: threading.Event) -> None:
    """Say once, or raise, what Dynamo says at its limit."""
    limit = dynamo_config.recompile_limit
    shapes = ", ".join(str(list(value.shape)) for value in arguments if isinstance(value, torch.Tensor))
    sentence = (
        f"torch._dynamo.config.recompile_limit ({limit}) is reached: a graph was compiled for {limit} sets of shapes, "
        f"and inputs of shapes {shapes} are one more. Pad inputs to fewer bucket sizes, or raise the limit"
    )
    if dynamo_config.fail_on_recompile_limit_hit:
        raise RuntimeError(sentence)
    if not told.is_set():
        told.set()
        warnings.warn(f"{sentence}; what goes beyond it runs operator by operator", stacklevel=2)


def concrete(graph: GraphModule) -> GraphModule:
    """Return a copy of ``graph`` without the example values, which belong to the environment it was traced in."""
    fresh = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in fresh.graph.nodes:
        node.meta.pop("example_value", None)
        node.meta.pop("val", None)
    return fresh
