"""Views by strides, without a table of indices: slices where the strides allow it, else a computed gather."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.addressing import scatter, take
from neuron_backend.lowering.array import constant
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


@lowers("aten.as_strided.default", "aten.as_strided_copy.default")
def _as_strided(
    call: Call, x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Array:
    source = call.node.all_input_nodes[0].meta["val"]
    offset = source.storage_offset() if storage_offset is None else storage_offset
    return _view(_storage(x, source), size, stride, offset - source.storage_offset())


@lowers("aten.as_strided_scatter.default")
def _as_strided_scatter(  # noqa: PLR0917  PyTorch's own signature
    call: Call,
    x: Array,
    values: Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Array:
    """Write by strides. Where they name an element twice, which write counts is left open."""
    source = call.node.all_input_nodes[0].meta["val"]
    offset = source.storage_offset() if storage_offset is None else storage_offset
    places = _places(size, stride, offset - source.storage_offset())
    flat = _storage(x, source)
    written = scatter(
        flat,
        places.reshape((places.size, 1)),
        values.to(x.dtype).broadcast(size).reshape((places.size,)),
        lambda _old, new: new,
        axes=[0],
        window_axes=[],
    )
    order = _memory_order(x, source)
    ordered = written.reshape([x.shape[axis] for axis in order])
    return ordered.transpose(sorted(range(x.rank), key=order.__getitem__))


def _storage(x: Array, source: torch.Tensor) -> Array:
    """Return the elements of ``x`` in the order in which ``source``, which it stands for, has them in memory."""
    order = _memory_order(x, source)
    return x.transpose(order).reshape((x.size,))


def _memory_order(x: Array, source: torch.Tensor) -> list[int]:
    """Return the dimensions of ``source``, outermost in memory first."""
    strides = source.stride()
    order = sorted(range(x.rank), key=lambda axis: (-strides[axis], -x.shape[axis]))
    expected = 1
    for axis in reversed(order):
        if x.shape[axis] != 1 and strides[axis] != expected:
            raise Refused("as_strided of a tensor with gaps or overlaps in its storage")
        expected *= x.shape[axis]
    return order


def _view(flat: Array, size: Sequence[int], stride: Sequence[int], offset: int) -> Array:
    """Read ``flat[offset + sum(index * stride)]`` for every index below ``size``."""
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if offset < 0 or last >= flat.size:
        raise Refused(f"it reads elements {offset} to {last} of a tensor of {flat.size}")
    axes = [axis for axis in range(len(size)) if size[axis] != 1 and stride[axis] != 0]
    axes.sort(key=lambda axis: -stride[axis])
    if _nested([size[axis] for axis in axes], [stride[axis] for axis in axes]):
        dense = _cut(flat, [size[axis] for axis in axes], [stride[axis] for axis in axes], offset)
    else:
        dense = _computed(flat, [size[axis] for axis in axes], [stride[axis] for axis in axes], offset)
    kept = sorted(range(len(axes)), key=lambda position: axes[position])
    return dense.transpose(kept).spread(size, sorted(axes))


def _nested(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each dimension lies within one step of the one before it, which divides evenly."""
    pairs = zip(strides, sizes[1:], strides[1:], strict=False)
    return all(outer % inner == 0 and count * inner <= outer for outer, count, inner in pairs)


def _cut(flat: Array, sizes: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """One reshape and one slice per dimension, outermost first; the last step is filled up where storage ends."""
    if not sizes:
        return flat.slice(0, offset, offset + 1).reshape(())
    block = sizes[0] * strides[0]
    missing = max(offset + block - flat.size, 0)
    current = flat.pad([0], [missing]).slice(0, offset, offset + block)
    done: tuple[int, ...] = ()
    for size, stride, inner in zip(
        sizes, strides, [*(s * t for s, t in zip(sizes, strides, strict=True)), 1][1:], strict=True
    ):
        done = (*done, size)
        current = current.reshape((*done, stride)).slice(len(done), 0, inner)
    return current.reshape(done)


def _computed(flat: Array, sizes: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    return take(flat, _places(sizes, strides, offset), 0)


def _places(sizes: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    index = constant(offset, torch.int64, sizes)
    for axis, stride in enumerate(strides):
        index = index + iota(sizes, axis) * stride
    return index


@lowers("aten.resize.default")
def _resize(call: Call, x: Array, _size: Sequence[int], **_memory_format: object) -> Array:
    """Take the first elements of the storage; what grows beyond it, which PyTorch leaves uninitialised, is zero."""
    source = call.node.all_input_nodes[0].meta["val"]
    count = math.prod(call.out.shape)
    flat = _storage(x, source)
    return flat.pad([0], [max(count - flat.size, 0)]).slice(0, 0, count).reshape(call.out.shape)


def _matrices(x: Array, dim1: int, dim2: int) -> tuple[Array, list[int]]:
    """Move two dimensions to the end; return the order in which the dimensions now stand, too."""
    rows, columns = dim1 % x.rank, dim2 % x.rank
    order = [*(axis for axis in range(x.rank) if axis not in {rows, columns}), rows, columns]
    return x.transpose(order), order


@lowers("aten.diagonal.default", "aten.diagonal_copy.default")
def _diagonal(call: Call, x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Take one strided slice: elements of a diagonal are a row and one apart."""
    matrices, _ = _matrices(x, dim1, dim2)
    width = matrices.shape[-1]
    flat = matrices.reshape((*matrices.shape[:-2], math.prod(matrices.shape[-2:])))
    start = offset if offset >= 0 else -offset * width
    length = call.out.shape[-1]
    return flat.slice(flat.rank - 1, start, start + (length - 1) * (width + 1) + 1, width + 1)


@lowers("aten.diagonal_scatter.default")
def _diagonal_scatter(_call: Call, x: Array, source: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Spread the source along rows or columns and choose: element k stands in row k, below the main one in column k."""
    matrices, order = _matrices(x, dim1, dim2)
    rank, length = matrices.rank, source.shape[-1]
    if not length:
        return x
    along = rank - 2 if offset >= 0 else rank - 1
    low, high = [0] * source.rank, [0] * source.rank
    high[-1] = matrices.shape[along] - length
    spread = source.to(x.dtype).pad(low, high).spread(matrices.shape, [*range(rank - 2), along])
    row, column = (iota(matrices.shape, axis) for axis in (rank - 2, rank - 1))
    result = (row + offset).equals(column).where(spread, matrices)
    return result.transpose(sorted(range(rank), key=order.__getitem__))
