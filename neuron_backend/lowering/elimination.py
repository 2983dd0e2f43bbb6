"""LU factorization with partial pivoting, and what follows from it: systems, inverses, determinants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.complexes import modulus
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.extremes import extreme
from neuron_backend.lowering.failures import refuse_failed
from neuron_backend.lowering.linear import (
    adjoint,
    as_columns,
    as_rows,
    at,
    cut,
    diagonal,
    identity,
    lower_triangle,
    numbers,
    product,
    repeated,
    solved,
    taken,
    transposed,
    unasked,
    upper_triangle,
)
from neuron_backend.lowering.loops import repeat
from neuron_backend.lowering.reductions import fold, total
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota
from neuron_backend.lowering.validity import LinAlgError

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


def _size(x: Array) -> Array:
    return modulus(x) if x.is_complex else x.apply("abs")


def eliminated(x: Array) -> tuple[Array, Array, Array]:
    """Return L and U in one matrix, LAPACK's pivots (int32, from 1), and the number of the first that is 0, or 0."""
    shape, batch = x.shape, x.shape[:-2]
    count = min(shape[-2:])
    vector = (*batch, shape[-2])
    rows, columns = numbers(shape, -2), numbers(shape, -1)

    def body(step: Array, matrix: Array, pivots: Array, failed: Array) -> list[Array]:
        column = taken(matrix, at(step, shape, -1), -1)
        # LAPACK's measure of a complex number, so that the pivots are its own.
        candidates = column.real.apply("abs") + column.imag.apply("abs") if x.is_complex else column.apply("abs")
        candidates = (numbers(vector, -1) < step.broadcast(vector)).where(candidates.full(-1), candidates)
        _, place = extreme(candidates, iota(vector, len(vector) - 1), [len(vector) - 1], largest=True)
        chosen = place.to(torch.int32)
        here, there = at(step, shape, -2), at(chosen, shape, -2)
        upper, lower = taken(matrix, here, -2), taken(matrix, there, -2)
        matrix = here.where(as_rows(lower, shape), there.where(as_rows(upper, shape), matrix))
        column = taken(matrix, at(step, shape, -1), -1)
        pivot = taken(column, at(step, vector, -1), -1)
        zero = pivot.equals(0)
        factors = column / zero.where(pivot.full(1), pivot).spread(vector, range(len(batch)))
        scaled = as_columns(factors, shape)
        below = rows > step.broadcast(shape)
        right = columns > step.broadcast(shape)
        matrix = (below & right).where(matrix - scaled * as_rows(lower, shape), matrix)
        matrix = (below & columns.equals(step.broadcast(shape))).where(scaled, matrix)
        pivots = at(step, pivots.shape, -1).where((chosen + 1).spread(pivots.shape, range(len(batch))), pivots)
        failed = (zero & failed.equals(0)).where((step + 1).broadcast(batch), failed)
        return [matrix, pivots, failed]

    nothing = constant(0, torch.int32, batch)
    matrix, pivots, failed = repeat(count, [x, constant(0, torch.int32, (*batch, count)), nothing], body)
    return matrix, pivots, failed


def permuted(pivots: Array, size: int) -> Array:
    """Carry out the row exchanges of ``pivots`` on the numbers 0, 1, ...: row i of the result was row result[i]."""
    batch = pivots.shape[:-1]
    shape = (*batch, size)

    def body(step: Array, order: Array) -> list[Array]:
        other = taken(pivots, at(step, pivots.shape, -1), -1) + -1
        here, there = at(step, shape, -1), at(other, shape, -1)
        first, second = (taken(order, mask, -1).spread(shape, range(len(batch))) for mask in (here, there))
        return [here.where(second, there.where(first, order))]

    return repeat(pivots.shape[-1], [numbers(shape, -1)], body)[0]


def _exchange(order: Array, dtype: torch.dtype) -> Array:
    """Return the matrix that brings row order[i] to row i."""
    shape = (*order.shape, order.shape[-1])
    return numbers(shape, -1).equals(as_columns(order, shape)).to(dtype)


def _triangles(matrix: Array) -> tuple[Array, Array]:
    rows, columns = matrix.shape[-2:]
    size = min(rows, columns)
    lower = cut(matrix, rows, size)
    lower = lower_triangle(lower, 1) + identity(lower.shape, lower.dtype)
    return lower, upper_triangle(cut(matrix, size, columns))


def substituted(matrix: Array, order: Array, right: Array) -> Array:
    """Solve A X = B, given L and U in one matrix and the order of the rows of A."""
    first = solved(matrix, product(_exchange(order, right.dtype), right), lower=True, unit=True)
    return solved(matrix, first, lower=False)


def _back_substituted(matrix: Array, order: Array, right: Array) -> Array:
    """Solve A^H X = B."""
    first = solved(matrix, right, lower=False, adjoint=True)
    second = solved(matrix, first, lower=True, unit=True, adjoint=True)
    return product(transposed(_exchange(order, right.dtype)), second)


_NO_FACTORS = (
    "torch.linalg.lu_factor_ex: U[{low},{low}] is zero and using it on lu_solve would result in a division by zero. If "
    "you still want to perform the factorization, consider calling linalg.lu(A, pivot) or linalg.lu_factor_ex(A, pivot)"
)
_NO_INVERSE = (
    "linalg.inv_ex: The diagonal element {low} is zero, the inversion could not be completed because the input matrix "
    "is singular."
)
_NO_SOLUTION = "torch.linalg.solve_ex: The solver failed because the input matrix is singular."


def _need_pivoting(pivot: bool) -> None:
    if not pivot:
        raise Refused("LU factorization without pivoting is not supported")


@lowers("aten.linalg_lu_factor_ex.default")
def _factor(call: Call, x: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array]:
    _need_pivoting(pivot)
    matrix, pivots, failed = eliminated(x)
    if check_errors:
        refuse_failed(call, x, failed, _NO_FACTORS, RuntimeError)
    return matrix, pivots, failed


@lowers("aten.linalg_lu.default")
def _factors(_call: Call, x: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    _need_pivoting(pivot)
    matrix, pivots, _ = eliminated(x)
    return transposed(_exchange(permuted(pivots, x.shape[-2]), x.dtype)), *_triangles(matrix)


@lowers("aten.lu_unpack.default")
def _unpack(
    call: Call, matrix: Array, pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array | None, ...]:
    empty = [unasked(call, position) for position in range(3)]
    exchange = transposed(_exchange(permuted(pivots, matrix.shape[-2]), matrix.dtype)) if unpack_pivots else empty[0]
    return exchange, *(_triangles(matrix) if unpack_data else empty[1:])


@lowers("aten.linalg_lu_solve.default")
def _solve_factored(
    call: Call, matrix: Array, pivots: Array, right: Array, *, left: bool = True, adjoint: bool = False
) -> Array:
    batch = call.out.shape[:-2]
    order = permuted(pivots, matrix.shape[-2]).broadcast((*batch, matrix.shape[-2]))
    matrix, right = repeated(matrix, batch), repeated(right, batch)
    return _solve(matrix, order, right, left=left, conjugated=adjoint)


def _solve(matrix: Array, order: Array, right: Array, *, left: bool, conjugated: bool) -> Array:
    """Solve from the left, or X A = B as A^H X^H = B^H."""
    if left:
        return (_back_substituted if conjugated else substituted)(matrix, order, right)
    return adjoint((substituted if conjugated else _back_substituted)(matrix, order, adjoint(right)))


@lowers("aten._linalg_solve_ex.default")
def _solve_system(
    call: Call, x: Array, right: Array, *, left: bool = True, check_errors: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Right-hand sides may be vectors: one dimension less than the batch of matrices, or a plain vector."""
    matrix, pivots, failed = eliminated(x)
    if check_errors:
        refuse_failed(call, x, failed, _NO_SOLUTION, LinAlgError)
    order = permuted(pivots, x.shape[-2])
    vector = right.rank == 1 or (right.rank == x.rank - 1 and right.shape == x.shape[:-1])
    sides = right.reshape((*right.shape, 1)) if vector else right
    shape = (*call.out.shape, 1) if vector else call.out.shape
    batch = shape[:-2]
    spread = order.broadcast((*batch, x.shape[-2]))
    result = _solve(repeated(matrix, batch), spread, repeated(sides, batch), left=left or vector, conjugated=False)
    return result.reshape(call.out.shape), matrix, pivots, failed


@lowers("aten.linalg_inv_ex.default")
def _inverse(call: Call, x: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    matrix, pivots, failed = eliminated(x)
    if check_errors:
        refuse_failed(call, x, failed, _NO_INVERSE, LinAlgError)
    return substituted(matrix, permuted(pivots, x.shape[-2]), identity(x.shape, x.dtype)), failed


def _parity(pivots: Array, dtype: torch.dtype) -> Array:
    """Return 1 for an even number of row exchanges, -1 for an odd one."""
    moved = pivots.differs(numbers(pivots.shape, -1) + 1).to(torch.int32)
    return (total(moved, [pivots.rank - 1]).apply("remainder", 2) * -2 + 1).to(dtype)


@lowers("aten._linalg_det.default")
def _determinant(_call: Call, x: Array) -> tuple[Array, Array, Array]:
    matrix, pivots, _ = eliminated(x)
    pivot_product = fold(diagonal(matrix), [x.rank - 2], "multiply", 1)
    return pivot_product * _parity(pivots, x.dtype), matrix, pivots


@lowers("aten._linalg_slogdet.default")
def _sign_and_logarithm(_call: Call, x: Array) -> tuple[Array, Array, Array, Array]:
    matrix, pivots, _ = eliminated(x)
    values = diagonal(matrix)
    size = _size(values)
    signs = values / size.equals(0).where(size.full(1), size).to(x.dtype)
    sign = fold(signs, [x.rank - 2], "multiply", 1) * _parity(pivots, x.dtype)
    return sign, total(size.apply("log"), [x.rank - 2]), matrix, pivots
