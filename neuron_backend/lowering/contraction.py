"""Products with many sums inside: dot_general and convolution. 16-bit floats are summed in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array
from neuron_backend.lowering.dtypes import accumulator, tensor_type
from neuron_backend.lowering.regions import pairs

if TYPE_CHECKING:
    from collections.abc import Sequence


def dot(left: Array, right: Array, *, batch: int = 0, contract: tuple[int, int]) -> Array:
    """Multiply, with ``batch`` leading dimensions in common, and sum over one dimension of each: ``contract``.

    The result is [batch..., rest of left..., rest of right...], in the accumulator's dtype.
    """
    common = list(range(batch))
    numbers = hlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=common,
        rhs_batching_dimensions=common,
        lhs_contracting_dimensions=[contract[0]],
        rhs_contracting_dimensions=[contract[1]],
    )
    shape = (
        *left.shape[:batch],
        *(size for axis, size in enumerate(left.shape) if axis >= batch and axis != contract[0]),
        *(size for axis, size in enumerate(right.shape) if axis >= batch and axis != contract[1]),
    )
    dtype = accumulator(left.dtype)
    return Array(hlo.dot_general(tensor_type(shape, dtype), left.value, right.value, numbers), dtype, shape)


def convolve(
    image: Array,
    kernel: Array,
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    image_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
    groups: int = 1,
    batch_groups: int = 1,
) -> Array:
    """Convolve [batch, features, space...] with [out, in, space...] to [batch, out, space...].

    ``strides``, ``padding`` and both dilations have one entry per spatial dimension; negative padding cuts off.
    The result has the accumulator's dtype.
    """
    space = list(range(2, image.rank))
    numbers = hlo.ConvDimensionNumbers.get(
        input_batch_dimension=0,
        input_feature_dimension=1,
        input_spatial_dimensions=space,
        kernel_input_feature_dimension=1,
        kernel_output_feature_dimension=0,
        kernel_spatial_dimensions=space,
        output_batch_dimension=0,
        output_feature_dimension=1,
        output_spatial_dimensions=space,
    )

    def dilated(size: int, factor: int) -> int:
        return (size - 1) * factor + 1 if size else 0

    spatial = [
        (dilated(image.shape[axis], grown) + low + high - dilated(kernel.shape[axis], reach)) // stride + 1
        for axis, stride, (low, high), grown, reach in zip(
            space, strides, padding, image_dilation, kernel_dilation, strict=True
        )
    ]
    shape = (image.shape[0] // batch_groups, kernel.shape[0], *spatial)
    dtype = accumulator(image.dtype)
    value = hlo.convolution(
        tensor_type(shape, dtype),
        image.value,
        kernel.value,
        numbers,
        feature_group_count=groups,
        batch_group_count=batch_groups,
        window_strides=list(strides),
        padding=pairs(padding),
        lhs_dilation=list(image_dilation),
        rhs_dilation=list(kernel_dilation),
    )
    return Array(value, dtype, shape)
