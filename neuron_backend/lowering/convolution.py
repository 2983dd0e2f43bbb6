"""Convolutions in any number of spatial dimensions, plain and transposed, and their gradients.

Three functions do it all. A transposed convolution is the image gradient of a plain one, so its own image gradient is
a plain convolution, and its kernel gradient is that of a plain one with image and gradient in exchanged roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuron_backend.lowering.contraction import convolve
from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


@dataclass(frozen=True)
class _Geometry:
    """Per spatial dimension: how far the kernel moves, what is added on both sides, how far its elements are apart."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    def plain(self, image: Array, kernel: Array) -> Array:
        """Convolve [N, C, ...] with [O, C / groups, ...]."""
        return convolve(
            image,
            kernel,
            strides=self.stride,
            padding=[(each, each) for each in self.padding],
            image_dilation=[1] * len(self.stride),
            kernel_dilation=self.dilation,
            groups=self.groups,
        )

    def image_gradient(self, gradient: Array, kernel: Array, shape: Sequence[int]) -> Array:
        """Return the gradient [N, C, ...] of ``plain`` by its image of ``shape``; the kernel stands on its head."""
        padding = []
        for axis, (stride, pad, dilation) in enumerate(zip(self.stride, self.padding, self.dilation, strict=True), 2):
            reach = dilation * (kernel.shape[axis] - 1)
            spread = (gradient.shape[axis] - 1) * stride + 1
            padding.append((reach - pad, shape[axis] - spread + pad))
        return convolve(
            gradient,
            self._turned(kernel),
            strides=[1] * len(self.stride),
            padding=padding,
            image_dilation=self.stride,
            kernel_dilation=self.dilation,
            groups=self.groups,
        )

    def kernel_gradient(self, image: Array, gradient: Array, shape: Sequence[int]) -> Array:
        """Return the gradient [O, C / groups, ...] of ``plain`` by its kernel: batch and features trade places."""
        padding = []
        for axis, (stride, pad, dilation) in enumerate(zip(self.stride, self.padding, self.dilation, strict=True), 2):
            spread = (gradient.shape[axis] - 1) * stride + 1
            padding.append((pad, dilation * (shape[axis] - 1) + spread - image.shape[axis] - pad))
        result = convolve(
            _exchanged(image),
            _exchanged(gradient),
            strides=self.dilation,
            padding=padding,
            image_dilation=[1] * len(self.stride),
            kernel_dilation=self.stride,
            batch_groups=self.groups,
        )
        return _exchanged(result)

    def _turned(self, kernel: Array) -> Array:
        """[O, C / groups, ...] to [C, O / groups, ...], reversed in space."""
        out, per_group, *space = kernel.shape
        split = kernel.reshape((self.groups, out // self.groups, per_group, *space))
        swapped = split.transpose([0, 2, 1, *range(3, split.rank)])
        joined = swapped.reshape((self.groups * per_group, out // self.groups, *space))
        return joined.reverse(range(2, kernel.rank))


def _exchanged(x: Array) -> Array:
    return x.transpose([1, 0, *range(2, x.rank)])


def _geometry(  # noqa: PLR0917  PyTorch's own signature
    x: Array, kernel: Array, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> _Geometry:
    count = kernel.rank - 2
    if x.rank != kernel.rank:
        raise Refused("the image has no batch dimension")

    def each(values: Sequence[int]) -> Sequence[int]:
        return list(values) * count if len(values) == 1 else values

    return _Geometry(each(stride), each(padding), each(dilation), groups)


@lowers("aten.convolution.default")
def _convolution(  # noqa: PLR0917  PyTorch's own signature
    call: Call,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
) -> Array:
    geometry = _geometry(x, weight, stride, padding, dilation, groups)
    result = geometry.image_gradient(x, weight, call.out.shape) if transposed else geometry.plain(x, weight)
    if bias is not None:
        result = result + bias.to(result.dtype).spread(result.shape, [1])
    return result.to(call.out.dtype)


@lowers("aten.convolution_backward.default")
def _convolution_backward(  # noqa: PLR0917  PyTorch's own signature
    _call: Call,
    gradient: Array,
    x: Array,
    weight: Array,
    _bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    geometry = _geometry(x, weight, stride, padding, dilation, groups)
    by_x = by_weight = by_bias = None
    if output_mask[0]:
        by_x = geometry.plain(gradient, weight) if transposed else geometry.image_gradient(gradient, weight, x.shape)
        for axis, size in enumerate(x.shape):
            # Output padding of a transposed convolution that reaches a whole stride: its gradient goes nowhere.
            by_x = by_x.slice(axis, 0, size)
    if output_mask[1]:
        image, outer = (gradient, x) if transposed else (x, gradient)
        by_weight = geometry.kernel_gradient(image, outer, weight.shape)
    if output_mask[2]:
        wide = gradient.to(accumulator(gradient.dtype))
        by_bias = total(wide, [axis for axis in range(gradient.rank) if axis != 1])
    return tuple(each and each.to(x.dtype) for each in (by_x, by_weight, by_bias))
