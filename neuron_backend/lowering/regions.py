"""Operations that carry a small program of their own: reduce, window reduce, sort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array, constant
from neuron_backend.lowering.dtypes import tensor_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Number

    Body = Callable[..., Sequence[Array]]


def pairs(values: Sequence[tuple[int, int]]) -> ir.Attribute:
    """(low, high) per dimension as StableHLO's padding attribute."""
    integer = ir.IntegerType.get_signless(64)
    numbers = [ir.IntegerAttr.get(integer, number) for pair in values for number in pair]
    return ir.DenseElementsAttr.get(numbers, ir.RankedTensorType.get([len(values), 2], integer))


def fill(operation: Any, arguments: Sequence[Array], body: Body) -> None:
    """Give ``operation`` its one region: ``body`` on rank-0 arrays of the dtypes of ``arguments``."""
    block = operation.regions[0].blocks.append(*(tensor_type((), array.dtype) for array in arguments))
    with ir.InsertionPoint(block):
        inner = [Array(value, array.dtype, ()) for array, value in zip(arguments, block.arguments, strict=True)]
        hlo.return_([result.value for result in body(*inner)])


def _wrapped(operation: Any, like: Sequence[Array], shape: Sequence[int]) -> list[Array]:
    return [Array(value, array.dtype, tuple(shape)) for array, value in zip(like, operation.results, strict=True)]


def reduce(operands: Sequence[Array], initial: Sequence[Number], axes: Sequence[int], body: Body) -> list[Array]:
    """Fold equally shaped arrays together over ``axes``, which disappear.

    ``body`` takes the left values of all operands and then the right ones; it must be associative and
    commutative, and ``initial`` its identity.
    """
    shape = [size for axis, size in enumerate(operands[0].shape) if axis not in axes]
    operation = hlo.ReduceOp(
        [tensor_type(shape, array.dtype) for array in operands],
        [array.value for array in operands],
        [constant(number, array.dtype).value for array, number in zip(operands, initial, strict=True)],
        sorted(axes),
    )
    fill(operation, [*operands, *operands], body)
    return _wrapped(operation, operands, shape)


def reduce_window(
    operands: Sequence[Array],
    initial: Sequence[Number],
    body: Body,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> list[Array]:
    """Fold each window of equally shaped arrays; all sequences have one entry per dimension."""
    shape = [
        (size + low + high - reach * (width - 1) - 1) // stride + 1
        for size, (low, high), width, stride, reach in zip(
            operands[0].shape, padding, window, strides, dilation, strict=True
        )
    ]
    operation = hlo.ReduceWindowOp(
        [tensor_type(shape, array.dtype) for array in operands],
        [array.value for array in operands],
        [constant(number, array.dtype).value for array, number in zip(operands, initial, strict=True)],
        list(window),
        window_strides=list(strides),
        base_dilations=[1] * len(window),
        window_dilations=list(dilation),
        padding=pairs(padding),
    )
    fill(operation, [*operands, *operands], body)
    return _wrapped(operation, operands, shape)


def sort(operands: Sequence[Array], axis: int, before: Callable[[Array, Array], Array]) -> list[Array]:
    """Sort equally shaped arrays together along ``axis``, stably; ``before`` compares elements of the first."""
    operation = hlo.SortOp(
        [array.value.type for array in operands],
        [array.value for array in operands],
        dimension=axis,
        is_stable=True,
    )
    doubled = [array for array in operands for _ in range(2)]
    fill(operation, doubled, lambda left, right, *_rest: [before(left, right)])
    return _wrapped(operation, operands, operands[0].shape)
