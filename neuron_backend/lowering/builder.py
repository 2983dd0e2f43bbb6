"""Makes the values that have no operand: constants, lifted scalars, index ramps; and joins arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array
from neuron_backend.lowering.dtypes import attribute, element_type, tensor_type
from neuron_backend.lowering.registry import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.fx import Node

    from neuron_backend.lowering.array import Number, Operand
    from neuron_backend.module import TensorSpec

# Elements of a tensor that a graph may hold by value. Larger ones would make the module, and so every key and every
# request that carries it, large; AOTAutograd passes parameters and buffers as inputs.
MAXIMUM_CONSTANT = 4096


@dataclass(frozen=True, slots=True)
class Lifted:
    """A Python float that stands in the graph as ``sentinel`` and becomes an extra rank-0 input of the program.

    ``dtype`` is the type of that input: the operator's compute dtype.
    """

    sentinel: float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds operations at MLIR's current insertion point; of one module, used by one thread."""

    lifted: Mapping[float, Array] = field(default_factory=dict)

    def is_lifted(self, number: Any) -> bool:
        """Whether ``number`` is the sentinel of a lifted scalar."""
        return type(number) is float and number in self.lifted

    def constant(self, number: Number, dtype: torch.dtype, shape: Sequence[int] = ()) -> Array:
        """Return a splat of ``number``, or the broadcast run-time scalar that it is the sentinel of."""
        shape = tuple(shape)
        if self.is_lifted(number):
            return self.lifted[number].to(dtype).broadcast(shape)
        splat = ir.DenseElementsAttr.get_splat(tensor_type(shape, dtype), attribute(number, dtype))
        return Array(self, hlo.constant(splat), dtype, shape)

    def dense(self, tensor: torch.Tensor) -> Array:
        """Return the elements of a small tensor that the graph holds, by value."""
        if tensor.numel() > MAXIMUM_CONSTANT:
            raise Refused(
                f"the graph holds a constant tensor of {tensor.numel()} elements, more than {MAXIMUM_CONSTANT}; "
                "pass it as an input"
            )
        host = tensor.detach().cpu().contiguous()
        element, shape = element_type(host.dtype), tuple(host.shape)
        if not host.numel():
            return self.constant(0, host.dtype, shape)
        elements = [attribute(number, host.dtype) for number in host.flatten().tolist()]
        dense = ir.DenseElementsAttr.get(elements, ir.RankedTensorType.get(list(shape), element))
        return Array(self, hlo.constant(dense), host.dtype, shape)

    def operand(self, operand: Operand, dtype: torch.dtype, shape: Sequence[int]) -> Array:
        """Bring a tensor or number to ``dtype`` and, by broadcasting, to ``shape``."""
        if isinstance(operand, Array):
            return operand.to(dtype).broadcast(shape)
        return self.constant(operand, dtype, shape)

    def iota(self, shape: Sequence[int], axis: int, dtype: torch.dtype = torch.int64) -> Array:
        """Return elements that are their own index along ``axis``."""
        shape = tuple(shape)
        return Array(self, hlo.iota(tensor_type(shape, dtype), axis), dtype, shape)

    def concatenate(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join arrays that agree in all other dimensions."""
        first = arrays[0]
        if len(arrays) == 1:
            return first
        shape = list(first.shape)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        return Array(self, hlo.concatenate([array.value for array in arrays], axis), first.dtype, tuple(shape))


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler knows of the node it lowers, beside the arguments."""

    builder: Builder
    node: Node
    outputs: tuple[TensorSpec | None, ...]

    @property
    def out(self) -> TensorSpec:
        """The (first) result, as PyTorch's shape inference has it."""
        first = self.outputs[0]
        if first is None:
            raise Refused("the first result is not a tensor")
        return first
