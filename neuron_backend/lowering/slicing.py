"""Parts of a tensor along one dimension, and writing into such parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


def _bounds(length: int, start: int | None, stop: int | None) -> tuple[int, int]:
    """Clip as Python's slices do; an empty slice has stop == start."""
    first, last, _ = slice(start, stop).indices(length)
    return first, max(first, last)


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def _slice(
    _call: Call, x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    axis = dim % x.rank
    return x.slice(axis, *_bounds(x.shape[axis], start, end), step)


@lowers("aten.select.int", "aten.select_copy.int")
def _select(call: Call, x: Array, dim: int, index: int) -> Array:
    axis = dim % x.rank
    position = index % x.shape[axis]
    return x.slice(axis, position, position + 1).reshape(call.out.shape)


@lowers("aten.split_with_sizes.default", "aten.split_with_sizes_copy.default")
def _split_with_sizes(_call: Call, x: Array, sizes: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    axis, parts, position = dim % x.rank, [], 0
    for size in sizes:
        parts.append(x.slice(axis, position, position + size))
        position += size
    return tuple(parts)


@lowers("aten.split.Tensor", "aten.split_copy.Tensor")
def _split(_call: Call, x: Array, size: int, dim: int = 0) -> tuple[Array, ...]:
    axis = dim % x.rank
    length = x.shape[axis]
    return tuple(x.slice(axis, start, min(start + size, length)) for start in range(0, length, size)) or (x,)


@lowers("aten.unbind.int", "aten.unbind_copy.int")
def _unbind(_call: Call, x: Array, dim: int = 0) -> tuple[Array, ...]:
    axis = dim % x.rank
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return tuple(x.slice(axis, index, index + 1).reshape(shape) for index in range(x.shape[axis]))


@lowers("aten.slice_scatter.default")
def _slice_scatter(  # noqa: PLR0917  PyTorch's own signature
    _call: Call,
    x: Array,
    source: Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Array:
    """Pad ``source`` out to the size of ``x``, its elements ``step`` apart, and choose between the two by index."""
    axis = dim % x.rank
    length, count = x.shape[axis], source.shape[axis]
    if not count:
        return x
    first, last = _bounds(length, start, end)
    low, high, interior = [0] * x.rank, [0] * x.rank, [0] * x.rank
    low[axis], interior[axis] = first, step - 1
    high[axis] = length - first - ((count - 1) * step + 1)
    index = iota(x.shape, axis)
    mask = (index >= first) & (index < last)
    if step != 1:
        mask = mask & (index - first).apply("remainder", step).equals(0)
    return mask.where(source.to(x.dtype).pad(low, high, 0, interior), x)


@lowers("aten.select_scatter.default")
def _select_scatter(_call: Call, x: Array, source: Array, dim: int, index: int) -> Array:
    axis = dim % x.rank
    mask = iota(x.shape, axis).equals(index % x.shape[axis])
    placed = source.to(x.dtype).reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :])).broadcast(x.shape)
    return mask.where(placed, x)
