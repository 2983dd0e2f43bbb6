"""Makes the values that have no operand: constants, lifted scalars, index ramps; and joins arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array
from neuron_backend.lowering.dtypes import attribute, element_type, tensor_type
from neuron_backend.lowering.registry import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def _refuse(*_operands: Any) -> Any:
    raise Refused("it computes with the value of a scalar that is lifted")


class LiftedNumber(float):
    """What a handler gets in place of a sentinel: a number that only `Builder.constant` knows the value of.

    It equals nothing, so that no shortcut for a special value applies, and refuses arithmetic and order: a handler
    that computed with it would bake the sentinel into the program.
    """

    __slots__ = ("array",)
    array: Array

    @classmethod
    def read_from(cls, array: Array) -> LiftedNumber:
        """Return the number that stands for the rank-0 input ``array``."""
        number = cls(math.nan)
        number.array = array
        return number

    def __eq__(self, _other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return id(self)

    __abs__ = __add__ = __divmod__ = __floordiv__ = __mod__ = __mul__ = __neg__ = __pos__ = __pow__ = __radd__ = _refuse
    __rdivmod__ = __rfloordiv__ = __rmod__ = __rmul__ = __round__ = __rpow__ = __rsub__ = __rtruediv__ = _refuse
    __sub__ = __truediv__ = __trunc__ = __int__ = __float__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds operations at MLIR's current insertion point; of one module, used by one thread."""

    def constant(self, number: Number, dtype: torch.dtype, shape: Sequence[int] = ()) -> Array:
        """Return a splat of ``number``, or of the run-time scalar that it stands for."""
        shape = tuple(shape)
        if isinstance(number, LiftedNumber):
            return number.array.to(dtype).broadcast(shape)
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
