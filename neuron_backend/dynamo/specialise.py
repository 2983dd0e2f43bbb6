"""Sizes that change between calls: one compile for each value that really comes.

Once a size has changed, Dynamo passes it as a symbol. A Neuron program has fixed shapes, so the symbolic graph is kept
and specialised to each set of concrete inputs: as often as Dynamo itself would compile a function again.
"""

from __future__ import annotations

import copy
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

    def run(*arguments: Any) -> Any:
        signature = _signature(arguments)
        function = compiled.get(signature)
        if function is None:
            with lock:
                function = compiled.get(signature)
                if function is None:
                    if len(compiled) >= dynamo_config.recompile_limit:
                        _limit_reached(arguments, told)
                        return graph.forward(*arguments)
                    function = compiled[signature] = compile_static(concrete(graph), arguments)
        return function(*arguments)

    return torch._dynamo.disable(run, reason="compiles for concrete sizes")  # type: ignore[no-untyped-call,no-any-return]  # noqa: SLF001


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
