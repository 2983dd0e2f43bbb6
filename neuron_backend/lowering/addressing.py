"""Reading and writing at computed places: gather and scatter, and the coordinates that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array
from neuron_backend.lowering.regions import fill
from neuron_backend.lowering.sources import concatenate, iota

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def gather(x: Array, indices: Array, axes: Sequence[int], position: int) -> Array:
    """Read along ``axes`` at ``indices`` [index shape..., len(axes)].

    The index shape stands at dimension ``position`` of the result, among the other dimensions of ``x``.
    """
    others = [axis for axis in range(x.rank) if axis not in axes]
    batch = indices.rank - 1
    rest = [x.shape[axis] for axis in others]
    shape = (*rest[:position], *indices.shape[:-1], *rest[position:])
    numbers = hlo.GatherDimensionNumbers.get(
        offset_dims=[*range(position), *range(position + batch, len(shape))],
        collapsed_slice_dims=sorted(axes),
        operand_batching_dims=[],
        start_indices_batching_dims=[],
        start_index_map=list(axes),
        index_vector_dim=batch,
    )
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    return Array(hlo.gather(x.value, indices.value, numbers, sizes), x.dtype, shape)


def take(x: Array, indices: Array, axis: int) -> Array:
    """Replace dimension ``axis`` by the dimensions of ``indices``."""
    return gather(x, indices.reshape((*indices.shape, 1)), [axis], axis)


def coordinates(indices: Array, axis: int) -> Array:
    """Return [shape..., rank]: each element's own index, but that of ``axis`` read from ``indices``."""
    parts = [indices if each == axis else iota(indices.shape, each, indices.dtype) for each in range(indices.rank)]
    columns = [part.reshape((*indices.shape, 1)) for part in parts]
    return concatenate(columns, indices.rank)


def scatter(
    operand: Array,
    indices: Array,
    updates: Array,
    combine: Callable[[Array, Array], Array],
    *,
    axes: Sequence[int],
    window_axes: Sequence[int],
) -> Array:
    """Combine ``updates`` into ``operand``; an update whose place lies outside is dropped.

    ``indices`` is [..., len(axes)]: coordinates along the operand's ``axes``. ``window_axes`` are the dimensions
    of ``updates`` that run over the operand's other dimensions.
    """
    numbers = hlo.ScatterDimensionNumbers.get(
        update_window_dims=list(window_axes),
        inserted_window_dims=sorted(axes),
        input_batching_dims=[],
        scatter_indices_batching_dims=[],
        scattered_dims_to_operand_dims=list(axes),
        index_vector_dim=indices.rank - 1,
    )
    operation = hlo.ScatterOp([operand.value.type], [operand.value], indices.value, [updates.value], numbers)
    fill(operation, [operand, operand], lambda old, new: [combine(old, new)])
    return operand.like(operation.results[0])
