"""Cholesky's factorization and triangular systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.complexes import conjugate
from neuron_backend.lowering.failures import refuse_failed
from neuron_backend.lowering.linear import (
    adjoint,
    as_columns,
    as_rows,
    at,
    identity,
    lower_triangle,
    numbers,
    repeated,
    solved,
    taken,
    transposed,
    upper_triangle,
)
from neuron_backend.lowering.loops import repeat
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.validity import Condition, LinAlgError

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call

_INDEFINITE = (
    "The factorization could not be completed because the input is not positive-definite "
    "(the leading minor of order {} is not positive-definite)."
)


def factor(x: Array) -> tuple[Array, Array]:
    """Return the lower factor, of the lower triangle, and the order of the first minor that is not positive, or 0.

    Column by column: its part of the matrix less the product of what stands left of it and of its row.
    """
    shape, batch = x.shape, x.shape[:-2]
    matrix = lower_triangle(x)

    def body(step: Array, done: Array, failed: Array) -> list[Array]:
        row = taken(done, at(step, shape, -2), -2)
        before = total(done * as_rows(conjugate(row), shape), [len(shape) - 1])
        column = taken(matrix, at(step, shape, -1), -1) - before
        own = at(step, column.shape, -1)
        pivot = taken(column, own, -1).real
        root = pivot.apply("sqrt").to(x.dtype)
        root = root.spread(column.shape, range(root.rank))
        below = numbers(column.shape, -1) > step.broadcast(column.shape)
        scaled = own.where(root, below.where(column / root, 0))
        new = at(step, shape, -1).where(as_columns(scaled, shape), done)
        bad = ~(pivot > 0) & failed.equals(0)
        return [new, bad.where((step + 1).broadcast(batch), failed)]

    result, failed = repeat(shape[-1], [x.full(0), constant(0, torch.int32, batch)], body)
    return result, failed


@lowers("aten.linalg_cholesky_ex.default")
def _cholesky(call: Call, x: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    result, failed = factor(adjoint(upper_triangle(x)) if upper else x)
    if check_errors:
        refuse_failed(call, x, failed, f"linalg.cholesky_ex: {_INDEFINITE.replace('{}', '{low}')}", LinAlgError)
    return (adjoint(result) if upper else result), failed


@lowers("aten.cholesky.default")
def _old_cholesky(call: Call, x: Array, upper: bool = False) -> Array:
    result, failed = factor(adjoint(upper_triangle(x)) if upper else x)
    call.refuse(Condition(x, failed.differs(0), f"cholesky: {_INDEFINITE}", LinAlgError, failed.to(torch.int64)))
    return adjoint(result) if upper else result


def _solved_twice(factor_: Array, right: Array, *, upper: bool) -> Array:
    first = solved(factor_, right, lower=not upper, adjoint=upper)
    return solved(factor_, first, lower=not upper, adjoint=not upper)


@lowers("aten.cholesky_solve.default", "aten._cholesky_solve_helper.default")
def _cholesky_solve(call: Call, right: Array, factor_: Array, upper: bool = False) -> Array:
    batch = call.out.shape[:-2]
    return _solved_twice(repeated(factor_, batch), repeated(right, batch), upper=upper)


@lowers("aten.cholesky_inverse.default")
def _cholesky_inverse(_call: Call, factor_: Array, upper: bool = False) -> Array:
    return _solved_twice(factor_, identity(factor_.shape, factor_.dtype), upper=upper)


@lowers("aten.linalg_solve_triangular.default")
def _solve_triangular(
    call: Call, matrix: Array, right: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    batch = call.out.shape[:-2]
    matrix, right = repeated(matrix, batch), repeated(right, batch)
    return solved(matrix, right, lower=not upper, left=left, unit=unitriangular)


@lowers("aten.triangular_solve.default")
def _old_solve_triangular(  # noqa: PLR0917 - PyTorch's own signature
    call: Call, right: Array, matrix: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    batch = call.out.shape[:-2]
    matrix, right = repeated(matrix, batch), repeated(right, batch)
    if transpose:
        matrix, upper = transposed(matrix), not upper
    result = solved(matrix, right, lower=not upper, unit=unitriangular)
    return result, transposed(matrix) if transpose else matrix
