"""Writing elements at computed indices. Where indices repeat without accumulation, which write counts is left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.addressing import coordinates, scatter, take
from neuron_backend.lowering.array import Array, constant
from neuron_backend.lowering.division import floor_quotient
from neuron_backend.lowering.dtypes import accumulator, highest, lowest
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.indexing import Advanced, from_the_end, is_mask
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.scans import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Operand
    from neuron_backend.lowering.registry import Call

    Combination = Callable[[Array, Array], Array]


def replace(_old: Array, new: Array) -> Array:
    """Let the last write count."""
    return new


def _add(old: Array, new: Array) -> Array:
    return old + new


def _along(x: Array, dim: int, index: Array, source: Operand, combine: Combination) -> Array:
    """Combine ``source`` into ``x`` where its elements' own indices say, but along ``dim`` where ``index`` says."""
    if not index.size:
        return x
    vector, places = x.reshape(x.shape or (1,)), index.reshape(index.shape or (1,))
    if isinstance(source, Array):
        updates = source.to(x.dtype).reshape(source.shape or (1,))
        for axis, size in enumerate(places.shape):
            updates = updates.slice(axis, 0, size)
    else:
        updates = constant(source, x.dtype, places.shape)
    target = coordinates(places, dim % vector.rank)
    return _combined(vector, target, updates, combine, axes=range(vector.rank), window_axes=()).reshape(x.shape)


def _combined(
    x: Array, target: Array, updates: Array, combine: Combination, *, axes: Sequence[int], window_axes: Sequence[int]
) -> Array:
    """Scatter; 16-bit floats that accumulate do so in float32."""
    dtype = x.dtype if combine is replace else accumulator(x.dtype)
    wide, source = x.to(dtype), updates.to(dtype)
    return scatter(wide, target, source, combine, axes=axes, window_axes=window_axes).to(x.dtype)


@lowers("aten.scatter.src", "aten.scatter.value")
def _scatter(_call: Call, x: Array, dim: int, index: Array, source: Operand) -> Array:
    return _along(x, dim, index, source, replace)


@lowers("aten.scatter_add.default")
def _scatter_add(_call: Call, x: Array, dim: int, index: Array, source: Array) -> Array:
    return _along(x, dim, index, source, _add)


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
def _scatter_with(_call: Call, x: Array, dim: int, index: Array, source: Operand, *, reduce: str) -> Array:
    return _along(x, dim, index, source, _COMBINATIONS["sum" if reduce == "add" else "prod"])


_COMBINATIONS: dict[str, Combination] = {
    "sum": _add,
    "mean": _add,
    "prod": lambda old, new: old * new,
    "amax": lambda old, new: old.apply("maximum", new),
    "amin": lambda old, new: old.apply("minimum", new),
}


def _identity(reduce: str, x: Array) -> float:
    return {"sum": 0, "mean": 0, "prod": 1, "amax": lowest(x.dtype), "amin": highest(x.dtype)}[reduce]


@lowers("aten.scatter_reduce.two")
def _scatter_reduce(  # noqa: PLR0917  PyTorch's own signature
    call: Call, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """Without ``include_self``, places that are written start from the identity; a mean divides by what it summed."""
    del call
    start = x if include_self else _along(x, dim, index, _identity(reduce, x), replace)
    result = _along(start, dim, index, source, _COMBINATIONS[reduce])
    if reduce != "mean":
        return result
    ones = x.full(1)
    counted = ones if include_self else _along(ones, dim, index, 0, replace)
    count = _along(counted, dim, index, 1, _add).apply("maximum", 1)
    return result / count if x.is_float else floor_quotient(result, count)


@lowers("aten.index_reduce.default")
def _index_reduce(  # noqa: PLR0917  PyTorch's own signature
    call: Call, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    vector, values = x.reshape(x.shape or (1,)), source.reshape(source.shape or (1,))
    spread = index.reshape((index.size,)).spread(values.shape, [dim % vector.rank])
    reduced = _scatter_reduce(call, vector, dim, spread, values, reduce, include_self=include_self)
    return reduced.reshape(x.shape)


@lowers("aten.put.default")
def _put(_call: Call, x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    places = from_the_end(index.reshape((index.size,)), x.size)
    combine = _add if accumulate else replace
    return _along(x.reshape((x.size,)), 0, places, source.reshape((source.size,)), combine).reshape(x.shape)


@lowers("aten.masked_scatter.default")
def _masked_scatter(call: Call, x: Array, mask: Array, source: Array) -> Array:
    """Give the n-th true place the n-th element of ``source``."""
    x, chosen = x.broadcast(call.out.shape), mask.broadcast(call.out.shape)
    (ordinal,) = scan([chosen.reshape((x.size,)).to(torch.int64)], [0], 0, lambda before, current: [before + current])
    elements = take(source.reshape((source.size,)), ordinal - 1, 0)
    return chosen.where(elements.reshape(x.shape), x)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def _index_put(call: Call, x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    if any(index is not None and is_mask(index) for index in indices):
        return _masked_put(x, indices, values, accumulate=accumulate)
    advanced = Advanced(call, x, indices)
    others = [size for axis, size in enumerate(x.shape) if axis not in advanced.axes]
    position, batch = advanced.position, len(advanced.shape)
    shape = (*others[:position], *advanced.shape, *others[position:])
    updates = values.to(x.dtype).broadcast(shape)
    window_axes = [*range(position), *range(position + batch, len(shape))]
    combine = _add if accumulate else replace
    return _combined(x, advanced.columns, updates, combine, axes=advanced.axes, window_axes=window_axes)


def _masked_put(x: Array, indices: Sequence[Array | None], values: Array, *, accumulate: bool) -> Array:
    """Select by one mask, if ``values`` has no dimension for the places that are true: their number is not known."""
    (first, mask), *others = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    rest = x.rank - first - mask.rank
    shape = (1,) * (first + 1 + rest - values.rank) + values.shape
    if others or shape[first] != 1:
        raise Refused("a boolean index with a value for each place depends on the number of places")
    aligned = values.to(x.dtype).reshape((*shape[:first], *(1,) * mask.rank, *shape[first + 1 :]))
    filled = aligned.broadcast(x.shape)
    chosen = mask.to(torch.bool).spread(x.shape, range(first, first + mask.rank))
    return chosen.where(x + filled if accumulate else filled, x)
