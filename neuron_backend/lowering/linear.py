"""What factorizations of matrices are made of: products, triangles, single rows and columns.

Matrices are the last two dimensions; those before are a batch. A row or column is taken by a mask and a sum, so that
its number may differ within the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.complexes import conjugate
from neuron_backend.lowering.contraction import dot
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


def product(left: Array, right: Array) -> Array:
    """Multiply matrices of one batch."""
    return dot(left, right, batch=left.rank - 2, contract=(left.rank - 1, left.rank - 2))


def transposed(x: Array) -> Array:
    """Swap the last two dimensions."""
    order = list(range(x.rank))
    order[-2:] = order[:-3:-1]
    return x.transpose(order)


def adjoint(x: Array) -> Array:
    """Transpose and conjugate."""
    return conjugate(transposed(x))


def unasked(call: Call, position: int) -> Array | None:
    """Return the empty tensor that stands for a result that was not asked for."""
    spec = call.outputs[position]
    return None if spec is None else constant(0, spec.dtype, spec.shape)


def numbers(shape: Sequence[int], axis: int) -> Array:
    """Return each element's index along ``axis``, as int32."""
    return iota(shape, axis % len(shape), torch.int32)


def at(index: Array, shape: Sequence[int], axis: int) -> Array:
    """Say where the index along ``axis`` is ``index``, a number for all or one for each matrix of the batch."""
    return numbers(shape, axis).equals(index.spread(shape, range(index.rank)))


def taken(x: Array, where: Array, axis: int) -> Array:
    """Sum the elements chosen by ``where`` over ``axis``, which disappears: with one chosen, that one."""
    return total(where.where(x, 0), [axis % x.rank])


def as_rows(vector: Array, shape: Sequence[int]) -> Array:
    """Repeat a vector of each matrix's columns in all rows."""
    return vector.spread(shape, [*range(len(shape) - 2), len(shape) - 1])


def as_columns(vector: Array, shape: Sequence[int]) -> Array:
    """Repeat a vector of each matrix's rows in all columns."""
    return vector.spread(shape, range(len(shape) - 1))


def lower_triangle(x: Array, below: int = 0) -> Array:
    """Keep elements at least ``below`` under the diagonal; the others become 0."""
    return (numbers(x.shape, -1) <= numbers(x.shape, -2) + -below).where(x, 0)


def upper_triangle(x: Array, above: int = 0) -> Array:
    """Keep elements at least ``above`` over the diagonal; the others become 0."""
    return (numbers(x.shape, -1) >= numbers(x.shape, -2) + above).where(x, 0)


def identity(shape: Sequence[int], dtype: torch.dtype) -> Array:
    """Return ones on the diagonal."""
    return numbers(shape, -1).equals(numbers(shape, -2)).to(dtype)


def diagonal(x: Array) -> Array:
    """Return the diagonal as a vector."""
    size = min(x.shape[-2:])
    square = cut(x, size, size)
    return taken(square, identity(square.shape, torch.bool), -1)


def cut(x: Array, rows: int, columns: int) -> Array:
    """Keep the first rows and columns."""
    return x.slice(x.rank - 2, 0, rows).slice(x.rank - 1, 0, columns)


def repeated(x: Array, batch: Sequence[int]) -> Array:
    """Broadcast the batch dimensions."""
    return x.broadcast((*batch, *x.shape[-2:]))


def solved(
    matrix: Array, right: Array, *, lower: bool, left: bool = True, unit: bool = False, adjoint: bool = False
) -> Array:
    """Solve with a triangular matrix, of which only that triangle is read; ``left``: it stands left of the unknown."""
    transpose = hlo.TransposeAttr.get("ADJOINT" if adjoint else "NO_TRANSPOSE")
    value = hlo.triangular_solve(matrix.value, right.value, left, lower, unit, transpose)
    return right.like(value)
