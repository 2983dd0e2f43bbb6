"""Adaptive pooling: window i of n over a dimension of size s runs from floor(i s / n) to ceil((i + 1) s / n)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.extremes import LAST_PLACE, extreme, least
from neuron_backend.lowering.pooling import flat_places, to_places
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


def _bounds(shape: Sequence[int], axis: int, size: int, count: int) -> tuple[Array, Array]:
    """First and end of the window that each element's index along ``axis`` names."""
    place = iota(shape, axis) * size
    return place / count, (place + (size + count - 1)) / count


def _inside(shape: Sequence[int], axis: int, size: int, count: int) -> Array:
    """Whether window ``axis`` holds element ``axis + 1``, in ``shape``."""
    start, end = _bounds(shape, axis, size, count)
    element = iota(shape, axis + 1)
    return (start <= element) & (element < end)


def _split(x: Array, axis: int, count: int) -> tuple[Array, Array]:
    """Put a window dimension of ``count`` before ``axis``; return the spread array and which elements count."""
    size = x.shape[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis:])
    spread = x.spread(shape, [each + (each >= axis) for each in range(x.rank)])
    return spread, _inside(shape, axis, size, count)


def _lengths(x: Array, axis: int, size: int) -> Array:
    start, end = _bounds(x.shape, axis, size, x.shape[axis])
    return (end - start).to(x.dtype)


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def _adaptive_average(call: Call, x: Array, output_size: Sequence[int]) -> Array:
    result = x.to(accumulator(x.dtype))
    for axis, count in enumerate(output_size, x.rank - len(output_size)):
        spread, inside = _split(result, axis, count)
        summed = total(inside.where(spread, 0), [axis + 1])
        result = summed / _lengths(summed, axis, x.shape[axis])
    return result.to(call.out.dtype)


def _average_backward(gradient: Array, x: Array, dimensions: int) -> Array:
    """Each element takes its share from every window that holds it."""
    result = gradient.to(accumulator(gradient.dtype))
    for axis in range(x.rank - dimensions, x.rank):
        size, count = x.shape[axis], gradient.shape[axis]
        share = result / _lengths(result, axis, size)
        shape = (*share.shape[: axis + 1], size, *share.shape[axis + 1 :])
        spread = share.spread(shape, [each + (each > axis) for each in range(share.rank)])
        result = total(_inside(shape, axis, size, count).where(spread, 0), [axis])
    return result.to(x.dtype)


@lowers("aten._adaptive_avg_pool2d_backward.default")
def _adaptive_average_2d_backward(_call: Call, gradient: Array, x: Array) -> Array:
    return _average_backward(gradient, x, 2)


@lowers("aten._adaptive_avg_pool3d_backward.default")
def _adaptive_average_3d_backward(_call: Call, gradient: Array, x: Array) -> Array:
    return _average_backward(gradient, x, 3)


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def _adaptive_maximum(_call: Call, x: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    values, places = x, flat_places(x, len(output_size))
    for axis, count in enumerate(output_size, x.rank - len(output_size)):
        spread, inside = _split(values, axis, count)
        spread_places, _ = _split(places, axis, count)
        candidates = inside.where(spread, least(x, largest=True)), inside.where(spread_places, LAST_PLACE)
        values, places = extreme(*candidates, [axis + 1], largest=True, last_nan=True)
    return values, places


@lowers("aten.adaptive_max_pool2d_backward.default")
def _adaptive_maximum_2d_backward(_call: Call, gradient: Array, x: Array, indices: Array) -> Array:
    return to_places(gradient, indices, x.shape, 2)


@lowers("aten.adaptive_max_pool3d_backward.default")
def _adaptive_maximum_3d_backward(_call: Call, gradient: Array, x: Array, indices: Array) -> Array:
    return to_places(gradient, indices, x.shape, 3)
