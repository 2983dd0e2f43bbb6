"""Float64 on a target that lacks it: the graph is lowered as if it said float32, and complex64 for complex128."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx.node import map_aggregate

from neuron_backend.lowering.dtypes import available
from neuron_backend.module import Signature, TensorSpec
from neuron_backend.torch_private import unset_fake_temporarily

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.fx import GraphModule, Node

    from neuron_backend.lowering.array import Lifted

_SINGLE: Final = torch.finfo(torch.float32)


@dataclass(frozen=True, slots=True)
class Narrowed:
    """``graph`` and ``lifted`` in types that the target has; ``inputs`` and ``outputs`` are the types they had."""

    graph: GraphModule
    lifted: tuple[Lifted, ...]
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]

    def called_as(self, signature: Signature) -> Signature:
        """Return the signature of the module in the types that they had.

        Seed and offset may follow the inputs, and the flag of value checks the outputs.
        """
        given = (*self.inputs, *(spec.dtype for spec in signature.inputs[len(self.inputs) :]))
        made = (*self.outputs, *(spec.dtype for spec in signature.outputs[len(self.outputs) :]))
        return Signature(
            tuple(TensorSpec(dtype, spec.shape) for dtype, spec in zip(given, signature.inputs, strict=True)),
            tuple(TensorSpec(dtype, spec.shape) for dtype, spec in zip(made, signature.outputs, strict=True)),
        )


def narrowed(graph: GraphModule, lifted: Sequence[Lifted]) -> Narrowed | None:
    """Return ``graph``, which is left as it is, in types that the target has (see `dtypes.narrowing`).

    None if it has all of the graph's types.
    """
    said = {node: list(_tensors(graph, node)) for node in graph.graph.nodes}
    wide = {node for node, tensors in said.items() if any(_lacks(tensor.dtype) for tensor in tensors)}
    if not wide and not any(_lacks(each.dtype) for each in lifted):
        return None
    single = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for index, (node, original) in enumerate(zip(single.graph.nodes, graph.graph.nodes, strict=True)):
        if original in wide and node.op == "get_attr":
            node.target = f"_narrowed_{index}"
            with unset_fake_temporarily():  # AOTAutograd calls its compilers inside the mode
                (tensor,) = said[original]
                single.register_buffer(node.target, tensor.detach().to(available(tensor.dtype)))
        if original in wide and "val" in node.meta:
            node.meta["val"] = map_aggregate(node.meta["val"], _example)
        if node.op == "call_function":
            among_wide = original in wide or any(each in wide for each in original.all_input_nodes)
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _fitting if among_wide else _available)
    (output,) = graph.graph.find_nodes(op="output")
    return Narrowed(
        graph=single,
        lifted=tuple(replace(each, dtype=available(each.dtype)) for each in lifted),
        inputs=(
            *(tensor.dtype for node in graph.graph.find_nodes(op="placeholder") for tensor in said[node]),
            *(each.dtype for each in lifted),
        ),
        outputs=tuple(tensor.dtype for node in _flat(output.args[0]) for tensor in said[node]),
    )


def _tensors(graph: GraphModule, node: Node) -> Iterator[torch.Tensor]:
    """Yield what ``node`` stands for."""
    value = node.meta.get("val")
    if node.op == "get_attr":
        value = graph
        for part in str(node.target).split("."):
            value = getattr(value, part)
    for each in _flat(value):
        if isinstance(each, torch.Tensor):
            yield each


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _lacks(dtype: torch.dtype) -> bool:
    return available(dtype) != dtype


def _example(value: Any) -> Any:
    """Return a tensor without content like ``value``, of the same place in memory of the same number of elements."""
    if not isinstance(value, torch.Tensor) or not _lacks(value.dtype):
        return value
    shape, strides, offset = tuple(value.shape), tuple(value.stride()), int(value.storage_offset())
    reach = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    with unset_fake_temporarily():
        memory = torch.empty(reach if value.numel() else 0, dtype=available(value.dtype), device="meta")
        return memory.as_strided(shape, strides, offset)


def _available(argument: Any) -> Any:
    return available(argument) if isinstance(argument, torch.dtype) else argument


def _fitting(argument: Any) -> Any:
    """Return a constant that was meant for float64 as one that float32 tells from zero and infinity, as float64 does.

    Code masks with the largest number of its type, and keeps divisors away from zero with the smallest.
    """
    if type(argument) is not float or argument == 0 or not math.isfinite(argument):
        return _available(argument)
    return math.copysign(min(max(abs(argument), _SINGLE.tiny), _SINGLE.max), argument)
