"""Writing elements at computed indices. Where indices repeat without accumulation, which write counts is left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.addressing import coordinates, scatter
from neuron_backend.lowering.array import Array
from neuron_backend.lowering.indexing import Advanced
from neuron_backend.lowering.registry import Refused, lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Operand
    from neuron_backend.lowering.builder import Call


def replace(_old: Array, new: Array) -> Array:
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
