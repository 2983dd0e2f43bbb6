"""Writing elements at computed indices. Where indices repeat without accumulation, which write counts is left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.addressing import coordinates, scatter, take
from neuron_backend.lowering.arithmetic import floor_quotient
from neuron_backend.lowering.array import Array
from neuron_backend.lowering.dtypes import highest, lowest
from neuron_backend.lowering.indexing import Advanced, from_the_end
from neuron_backend.lowering.registry import Refused, lowers
from neuron_backend.lowering.scans import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Operand
    from neuron_backend.lowering.builder import Call


def replace(_old: Array, new: Array) -> Array:
    """Let the last write count."""
    return new


def _along(x: Array, dim: int, index: Array, source: Operand, combine: Callable[[Array, Array], Array]) -> Array:
    """Combine ``source`` into ``x`` where its elements' own indices say, but along ``dim`` where ``index`` says."""
    if not index.size:
        return x
    vector, places = x.reshape(x.shape or (1,)), index.reshape(index.shape or (1,))
    if isinstance(source, Array):
        updates = source.to(x.dtype).reshape(source.shape or (1,))
        for axis, size in enumerate(places.shape):
            updates = updates.slice(axis, 0, size)
    else:
        updates = x.builder.constant(source, x.dtype, places.shape)
    axes = list(range(vector.rank))
    target = coordinates(places, dim % vector.rank)
    return scatter(vector, target, updates, combine, axes=axes, window_axes=[]).reshape(x.shape)


@lowers("aten.scatter.src", "aten.scatter.value")
def _scatter(_call: Call, x: Array, dim: int, index: Array, source: Operand) -> Array:
    return _along(x, dim, index, source, replace)


@lowers("aten.scatter_add.default")
def _scatter_add(_call: Call, x: Array, dim: int, index: Array, source: Array) -> Array:
    return _along(x, dim, index, source, lambda old, new: old + new)


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
def _scatter_with(_call: Call, x: Array, dim: int, index: Array, source: Operand, *, reduce: str) -> Array:
    return _along(x, dim, index, source, _COMBINATIONS["sum" if reduce == "add" else "prod"])


_COMBINATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": lambda old, new: old + new,
    "mean": lambda old, new: old + new,
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
    count = _along(counted, dim, index, 1, _COMBINATIONS["sum"]).apply("maximum", 1)
    return result / count if x.is_float else floor_quotient(result, count)


@lowers("aten.index_reduce.default")
def _index_reduce(  # noqa: PLR0917  PyTorch's own signature
    call: Call, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    if not x.rank:
        raise Refused("index_reduce of a rank-0 tensor is not supported")
    spread = index.reshape((index.size,)).spread(source.shape, [dim % x.rank])
    return _scatter_reduce(call, x, dim, spread, source, reduce, include_self=include_self)


@lowers("aten.put.default")
def _put(_call: Call, x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    places = from_the_end(index.reshape((index.size,)), x.size)
    combine = _COMBINATIONS["sum"] if accumulate else replace
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
    masks = [index for index in indices if index is not None and index.dtype == torch.bool]
    if masks:
        return _masked_put(x, indices, values, accumulate=accumulate)
    advanced = Advanced(call, x, indices)
    others = [size for axis, size in enumerate(x.shape) if axis not in advanced.axes]
    position, batch = advanced.position, len(advanced.shape)
    shape = (*others[:position], *advanced.shape, *others[position:])
    return scatter(
        x,
        advanced.columns,
        values.to(x.dtype).broadcast(shape),
        (lambda old, new: old + new) if accumulate else replace,
        axes=advanced.axes,
        window_axes=[*range(position), *range(position + batch, len(shape))],
    )


def _masked_put(x: Array, indices: Sequence[Array | None], values: Array, *, accumulate: bool) -> Array:
    """Select by one boolean mask over the leading dimensions, if ``values`` does not depend on how many are true."""
    mask = indices[0]
    if len(indices) != 1 or mask is None or (values.rank > x.rank - mask.rank and values.size != 1):
        raise Refused("a boolean index with values for each place depends on the number of places")
    if values.size == 1:
        values = values.reshape(())
    filled = values.to(x.dtype).broadcast(x.shape)
    chosen = mask.spread(x.shape, range(mask.rank))
    return chosen.where(x + filled if accumulate else filled, x)
