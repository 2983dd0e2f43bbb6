"""Values that have no tensor operand, and the joining of several: constants, index ramps, concatenation.

Operations are built at MLIR's current insertion point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array, constant
from neuron_backend.lowering.dtypes import attribute, element_type, tensor_type
from neuron_backend.lowering.errors import Refused
from neuron_backend.torch_private import unset_fake_temporarily

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Operand

# Elements of a tensor that a graph may hold by value. Larger ones would make the module, and so every key and every
# request that carries it, large; AOTAutograd passes parameters and buffers as inputs.
MAXIMUM_CONSTANT = 4096


def dense(tensor: torch.Tensor) -> Array:
    """Return the elements of a small tensor that the graph holds, by value."""
    if tensor.numel() > MAXIMUM_CONSTANT:
        raise Refused(
            f"the graph holds a constant tensor of {tensor.numel()} elements, more than {MAXIMUM_CONSTANT}; "
            "pass it as an input"
        )
    with unset_fake_temporarily():  # AOTAutograd calls its compilers inside the mode
        host = tensor.detach().cpu().contiguous()
        numbers = host.flatten().tolist()
    element, shape = element_type(host.dtype), tuple(host.shape)
    if not host.numel():
        return constant(0, host.dtype, shape)
    if host.dtype.is_complex:
        with unset_fake_temporarily():
            parts = host.real, host.imag
        return dense(parts[0]).joined(dense(parts[1]))
    elements = [attribute(number, host.dtype) for number in numbers]
    values = ir.DenseElementsAttr.get(elements, ir.RankedTensorType.get(list(shape), element))
    return Array(hlo.constant(values), host.dtype, shape)


def conform(value: Operand, dtype: torch.dtype, shape: Sequence[int]) -> Array:
    """Bring a tensor or number to ``dtype`` and, by broadcasting, to ``shape``."""
    if isinstance(value, Array):
        return value.to(dtype).broadcast(shape)
    return constant(value, dtype, shape)


def iota(shape: Sequence[int], axis: int, dtype: torch.dtype = torch.int64) -> Array:
    """Return elements that are their own index along ``axis``."""
    shape = tuple(shape)
    return Array(hlo.iota(tensor_type(shape, dtype), axis), dtype, shape)


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays that agree in all other dimensions."""
    first = arrays[0]
    if len(arrays) == 1:
        return first
    shape = list(first.shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    return Array(hlo.concatenate([array.value for array in arrays], axis), first.dtype, tuple(shape))
