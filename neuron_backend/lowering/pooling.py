"""Average and maximum pooling over windows, and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuron_backend.lowering.addressing import scatter
from neuron_backend.lowering.array import constant
from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.extremes import LAST_PLACE, better_of, least
from neuron_backend.lowering.regions import reduce_window
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import concatenate, iota

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Array, Number
    from neuron_backend.lowering.registry import Call


@dataclass(frozen=True)
class _Windows:
    """Windows over the last dimensions: for each its width, stride, padding before, dilation, and their number."""

    width: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    count: Sequence[int]

    @classmethod
    def of(
        cls,
        count: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> _Windows:
        """Expand PyTorch's arguments: each may be one number for all dimensions, and the stride may be missing."""

        def each(values: Sequence[int]) -> Sequence[int]:
            return list(values) * len(count) if len(values) == 1 else list(values)

        return cls(each(kernel), each(stride or kernel), each(padding), each(dilation), count)

    def fold(
        self, operands: Sequence[Array], initial: Sequence[Number], body: Callable[..., Sequence[Array]]
    ) -> list[Array]:
        """Reduce each window. The last may reach over the padding (``ceil_mode``), or leave elements out."""
        lead = operands[0].rank - len(self.width)
        ends = [
            (count - 1) * stride + dilation * (width - 1) + 1 - size - pad
            for size, width, stride, pad, dilation, count in zip(
                operands[0].shape[lead:],
                self.width,
                self.stride,
                self.padding,
                self.dilation,
                self.count,
                strict=True,
            )
        ]
        return reduce_window(
            operands,
            initial,
            body,
            window=[1] * lead + list(self.width),
            strides=[1] * lead + list(self.stride),
            padding=[(0, 0)] * lead + list(zip(self.padding, ends, strict=True)),
            dilation=[1] * lead + list(self.dilation),
        )


def _max_pool(  # noqa: PLR0917  PyTorch's own signature
    call: Call,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    _ceil_mode: bool = False,
    *,
    dimensions: int,
) -> tuple[Array, Array]:
    windows = _Windows.of(call.out.shape[-dimensions:], kernel_size, stride, padding, dilation)
    initial = [least(x, largest=True), LAST_PLACE]
    values, found = windows.fold([x, flat_places(x, dimensions)], initial, better_of(largest=True, last_nan=True))
    return values, found


def flat_places(x: Array, dimensions: int) -> Array:
    """Each element's row-major index within the last ``dimensions``, in the shape of ``x``."""
    space = x.shape[-dimensions:]
    return iota((math.prod(space),), 0).reshape(space).broadcast(x.shape)


def to_places(gradient: Array, places: Array, shape: Sequence[int], dimensions: int) -> Array:
    """Add ``gradient`` up at the row-major ``places`` within the last ``dimensions`` of ``shape``."""
    lead, space = math.prod(shape[:-dimensions]), math.prod(shape[-dimensions:])
    dtype = accumulator(gradient.dtype)
    rows = (lead, gradient.size // lead)
    columns = [iota(rows, 0).reshape((*rows, 1)), places.reshape((*rows, 1))]
    result = scatter(
        constant(0, dtype, (lead, space)),
        concatenate(columns, 2),
        gradient.to(dtype).reshape(rows),
        lambda old, new: old + new,
        axes=[0, 1],
        window_axes=[],
    )
    return result.to(gradient.dtype).reshape(shape)


def _average_pool(  # noqa: PLR0917  PyTorch's own signature
    call: Call,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    _ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dimensions: int,
) -> Array:
    windows = _Windows.of(call.out.shape[-dimensions:], kernel_size, stride, padding)
    (summed,) = windows.fold([x.to(accumulator(x.dtype))], [0], lambda a, b: [a + b])
    divided = _divided(summed, windows, x.shape[-dimensions:], divisor_override, include_padding=count_include_pad)
    return divided.to(x.dtype)


def _divided(
    summed: Array, windows: _Windows, space: Sequence[int], override: int | None, *, include_padding: bool
) -> Array:
    """Divide by ``override``, or by how many elements each window holds, which depends on its place alone."""
    if override is not None:
        return summed / override
    lead = summed.rank - len(space)
    for axis, size in enumerate(space):
        width, stride, pad = windows.width[axis], windows.stride[axis], windows.padding[axis]
        low, high = (-pad, size + pad) if include_padding else (0, size)
        spans = [
            (place * stride - pad, min(place * stride - pad + width, size + pad))
            for place in range(windows.count[axis])
        ]
        counts = [min(end, high) - max(start, low) for start, end in spans]
        if len(set(counts)) == 1:
            summed = summed / counts[0]
            continue
        start = iota(summed.shape, lead + axis) * stride - pad
        end = (start + width).apply("minimum", high)
        summed = summed / (end - start.apply("maximum", low)).to(summed.dtype)
    return summed


def _average_pool_backward(  # noqa: PLR0917  PyTorch's own signature
    _call: Call,
    gradient: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    _ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    dimensions: int,
) -> Array:
    """Spread the gradients ``stride`` apart; each element then sums those of the windows that it lies in."""
    lead, space = x.rank - dimensions, x.shape[-dimensions:]
    windows = _Windows.of(gradient.shape[-dimensions:], kernel_size, stride, padding)
    wide = gradient.to(accumulator(gradient.dtype))
    share = _divided(wide, windows, space, divisor_override, include_padding=count_include_pad)
    interior = [0] * lead + [each - 1 for each in windows.stride]
    low = [0] * lead + [width - 1 - pad for width, pad in zip(windows.width, windows.padding, strict=True)]
    high = [0] * lead
    for axis, width in enumerate(windows.width):
        spread = (windows.count[axis] - 1) * windows.stride[axis] + 1
        high.append(space[axis] + width - 1 - spread - low[lead + axis])
    apart = share.pad(low, high, 0, interior)
    unit = [1] * dimensions
    back = _Windows(windows.width, unit, [0] * dimensions, unit, space)
    return back.fold([apart], [0], lambda a, b: [a + b])[0].to(x.dtype)


def _max_pool_backward(_call: Call, gradient: Array, x: Array, *arguments: object, dimensions: int) -> Array:
    *_geometry, indices = arguments
    return to_places(gradient, indices, x.shape, dimensions)  # type: ignore[arg-type]  # the schema's last is a tensor


def _in(dimensions: int, function: Callable[..., object]) -> Callable[..., object]:
    return lambda *arguments, **keywords: function(*arguments, **keywords, dimensions=dimensions)


lowers("aten.max_pool2d_with_indices.default")(_in(2, _max_pool))
lowers("aten.max_pool3d_with_indices.default")(_in(3, _max_pool))
lowers("aten.max_pool2d_with_indices_backward.default")(_in(2, _max_pool_backward))
lowers("aten.max_pool3d_with_indices_backward.default")(_in(3, _max_pool_backward))
lowers("aten.avg_pool1d.default")(_in(1, _average_pool))
lowers("aten.avg_pool2d.default")(_in(2, _average_pool))
lowers("aten.avg_pool3d.default")(_in(3, _average_pool))
lowers("aten.avg_pool2d_backward.default")(_in(2, _average_pool_backward))
lowers("aten.avg_pool3d_backward.default")(_in(3, _average_pool_backward))
