"""QR factorization by Householder's reflections, in LAPACK's form: vectors below the diagonal, and their factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.complexes import conjugate
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.linear import (
    adjoint,
    as_columns,
    as_rows,
    at,
    cut,
    identity,
    numbers,
    taken,
    unasked,
    upper_triangle,
)
from neuron_backend.lowering.loops import repeat
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


def _squares(x: Array) -> Array:
    return x.real * x.real + x.imag * x.imag if x.is_complex else x * x


def _spread(scalar: Array, shape: tuple[int, ...]) -> Array:
    """Repeat one number for each matrix over a vector or matrix."""
    return scalar.spread(shape, range(scalar.rank))


def reflect(matrix: Array, vector: Array, factor: Array) -> Array:
    """Return matrix - factor v v^H matrix."""
    shape = matrix.shape
    weights = total(as_columns(conjugate(vector), shape) * matrix, [len(shape) - 2])
    return matrix - as_columns(vector, shape) * as_rows(_spread(factor, weights.shape) * weights, shape)


def reflected(x: Array) -> tuple[Array, Array]:
    """Return R with the reflections' vectors below it, and their factors: LAPACK's ``geqrf``."""
    shape, batch = x.shape, x.shape[:-2]
    count = min(shape[-2:])
    vector = (*batch, shape[-2])

    def body(step: Array, matrix: Array, factors: Array) -> list[Array]:
        column = taken(matrix, at(step, shape, -1), -1)
        own = at(step, vector, -1)
        below = numbers(vector, -1) > step.broadcast(vector)
        alpha = taken(column, own, -1)
        rest = total(_squares(below.where(column, 0)), [len(vector) - 1])
        length = (_squares(alpha) + rest).apply("sqrt")
        beta = (alpha.real < 0).where(length, -length)
        # Nothing to reflect: the column is finished, and real on the diagonal.
        idle = rest.equals(0) & alpha.imag.equals(0) if x.is_complex else rest.equals(0)
        safe = idle.where(1, beta).to(x.dtype)
        factor = idle.where(alpha.full(0), (safe - alpha) / safe)
        divisor = idle.where(alpha.full(1), alpha - safe)
        reflector = own.where(column.full(1), below.where(column / _spread(divisor, vector), 0))
        new = reflect(matrix, reflector, conjugate(factor))
        diagonal = own.where(_spread(idle.where(alpha, beta.to(x.dtype)), vector), column)
        stored = below.where(reflector, diagonal)
        here = numbers(shape, -1).equals(step.broadcast(shape))
        later = numbers(shape, -1) > step.broadcast(shape)
        matrix = here.where(as_columns(stored, shape), later.where(new, matrix))
        place = at(step, factors.shape, -1)
        return [matrix, place.where(_spread(factor, factors.shape), factors)]

    matrix, factors = repeat(count, [x, constant(0, x.dtype, (*batch, count))], body)
    return matrix, factors


def _vector(matrix: Array, step: Array) -> Array:
    shape = matrix.shape[:-1]
    column = taken(matrix, at(step, matrix.shape, -1), -1)
    below = (numbers(shape, -1) > step.broadcast(shape)).where(column, 0)
    return at(step, shape, -1).where(column.full(1), below)


def applied(matrix: Array, factors: Array, other: Array, *, adjoint: bool = False) -> Array:
    """Multiply ``other`` from the left with Q = H(1) H(2) ..., given by vectors and factors, or with its adjoint."""
    count = factors.shape[-1]

    def body(step: Array, current: Array) -> list[Array]:
        place = step if adjoint else -step + (count - 1)
        factor = taken(factors, at(place, factors.shape, -1), -1)
        return [reflect(current, _vector(matrix, place), conjugate(factor) if adjoint else factor)]

    return repeat(count, [other], body)[0]


def orthogonal(matrix: Array, factors: Array, columns: int) -> Array:
    """Return the first ``columns`` columns of Q."""
    return applied(matrix, factors, identity((*matrix.shape[:-1], columns), matrix.dtype))


def decomposed(x: Array, *, complete: bool) -> tuple[Array, Array]:
    """Return Q and R, whole or reduced to the smaller dimension."""
    rows, columns = x.shape[-2:]
    matrix, factors = reflected(x)
    size = rows if complete else min(rows, columns)
    return orthogonal(matrix, factors, size), upper_triangle(cut(matrix, size, columns))


@lowers("aten.geqrf.default")
def _geqrf(_call: Call, x: Array) -> tuple[Array, Array]:
    return reflected(x)


@lowers("aten.linalg_householder_product.default", "aten.orgqr.default")
def _householder_product(_call: Call, matrix: Array, factors: Array) -> Array:
    return orthogonal(matrix, factors, matrix.shape[-1])


@lowers("aten.ormqr.default")
def _multiply(
    _call: Call, matrix: Array, factors: Array, other: Array, left: bool = True, transpose: bool = False
) -> Array:
    """From the right by the adjoint: C Q = (Q^H C^H)^H."""
    if left:
        return applied(matrix, factors, other, adjoint=transpose)
    return adjoint(applied(matrix, factors, adjoint(other), adjoint=not transpose))


@lowers("aten.linalg_qr.default")
def _qr(call: Call, x: Array, mode: str = "reduced") -> tuple[Array | None, Array]:
    if mode == "r":
        matrix, _ = reflected(x)
        return unasked(call, 0), upper_triangle(cut(matrix, min(x.shape[-2:]), x.shape[-1]))
    if mode not in {"reduced", "complete"}:
        raise Refused(f"mode {mode!r} of QR is not known")
    return decomposed(x, complete=mode == "complete")
