"""Eigenvalues of Hermitian matrices and singular values, by Jacobi's rotations of pairs of columns.

All pairs of a step are rotated at once: column i of the left half with column i of the right half. Then the columns
move on as the players of a round-robin tournament (Brent and Luk, 1985), so that after n - 1 steps, a sweep, each pair
has met once and every column is back in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.complexes import conjugate, modulus
from neuron_backend.lowering.linear import (
    adjoint,
    as_rows,
    cut,
    diagonal,
    identity,
    lower_triangle,
    numbers,
    product,
    unasked,
    upper_triangle,
)
from neuron_backend.lowering.loops import any_of, repeat, while_loop
from neuron_backend.lowering.reductions import fold, total
from neuron_backend.lowering.reflections import decomposed
from neuron_backend.lowering.regions import sort
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import concatenate

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call

_MOST_SWEEPS = 20  # convergence is quadratic in the end: about 6 are the rule


def _halves(x: Array, axis: int) -> tuple[Array, Array]:
    middle = x.shape[axis] // 2
    return x.slice(axis, 0, middle), x.slice(axis, middle, x.shape[axis])


def _moved(first: Array, second: Array, axis: int) -> Array:
    """Let the columns (or rows) of the two halves move on by one place; the very first stays."""
    size = first.shape[axis]
    if size == 1:
        return concatenate([first, second], axis)
    ones, twos = (
        [half.slice(axis, *bounds) for bounds in cuts]
        for half, cuts in (
            (first, ((0, 1), (1, size - 1), (size - 1, size))),
            (second, ((0, 1), (1, size))),
        )
    )
    parts = [ones[0], twos[0], ones[1], twos[1], ones[2]]
    return concatenate([part for part in parts if part.shape[axis]], axis)


def _angles(left: Array, right: Array, between: Array) -> tuple[Array, Array, Array]:
    """Return cosine, sine and phase of the rotation that makes the product ``between`` of two columns 0.

    ``left`` and ``right`` are their own products, real numbers.
    """
    size = modulus(between) if between.is_complex else between.apply("abs")
    idle = size.equals(0)
    phase = between / idle.where(size.full(1), size).to(between.dtype)
    phase = idle.where(phase.full(1), phase)
    tau = (right - left) / (idle.where(1, size) * 2)
    root = (tau * tau + 1).apply("sqrt") + tau.apply("abs")
    tangent = idle.where(0, (tau < 0).where(-(1 / root), 1 / root))
    cosine = 1 / (tangent * tangent + 1).apply("sqrt")
    return cosine.to(between.dtype), (tangent * cosine).to(between.dtype), phase


def _rotated(x: Array, axis: int, rotation: tuple[Array, Array, Array], *, conjugated: bool = False) -> Array:
    """Rotate each pair of columns (axis -1) or rows (axis -2), and move them on."""
    axis = axis % x.rank
    first, second = _halves(x, axis)
    along = [*range(x.rank - 2), axis]
    cosine, sine, phase = (each.spread(first.shape, along) for each in rotation)
    second = second * (phase if conjugated else conjugate(phase))
    return _moved(first * cosine - second * sine, first * sine + second * cosine, axis)


def _padded(x: Array, *, rows: bool) -> Array:
    """Make the number of columns even by a column of zeros, which no rotation touches."""
    odd = x.shape[-1] % 2
    high = [*[0] * (x.rank - 2), odd if rows else 0, odd]
    return x.pad([0] * x.rank, high)


def _sweeps(initial: list[Array], step: Callable[..., list[Array]], rotates: Callable[..., Array]) -> list[Array]:
    """Sweep until ``rotates`` finds nothing that is not small; ``step`` is one of a sweep's."""
    count = initial[0].shape[-1] - 1

    def body(sweep: Array, *arrays: Array) -> list[Array]:
        return [sweep + 1, *repeat(count, arrays, lambda _step, *inner: step(*inner))]

    first = constant(0, torch.int32)
    _, *result = while_loop([first, *initial], lambda sweep, *inner: rotates(*inner) & (sweep < _MOST_SWEEPS), body)
    return result


def eigen(x: Array) -> tuple[Array, Array]:
    """Return eigenvalues, ascending, and eigenvectors as columns; of a Hermitian matrix given whole."""
    size = x.shape[-1]
    matrix = _padded(x, rows=True)
    vectors = identity(matrix.shape, x.dtype)
    small = torch.finfo(x.dtype).eps

    def step(a: Array, v: Array) -> list[Array]:
        left, right = _halves(diagonal(a).real, a.rank - 2)
        corner = _halves(_halves(a, a.rank - 2)[0], a.rank - 1)[1]
        rotation = _angles(left, right, diagonal(corner))
        a = _rotated(_rotated(a, -1, rotation), -2, rotation, conjugated=True)
        return [a, _rotated(v, -1, rotation)]

    def rotates(a: Array, _v: Array) -> Array:
        size = modulus(a) if a.is_complex else a.apply("abs")
        beside = numbers(a.shape, -1).differs(numbers(a.shape, -2)).where(size, 0)
        axes = [a.rank - 2, a.rank - 1]
        return any_of(fold(beside, axes, "maximum", 0) > fold(size, axes, "maximum", 0) * small)

    if matrix.shape[-1] > 1:
        matrix, vectors = _sweeps([matrix, vectors], step, rotates)
    values, vectors = _ordered(diagonal(cut(matrix, size, size)).real, [cut(vectors, size, size)], descending=False)
    return values, vectors


def _ordered(values: Array, matrices: list[Array], *, descending: bool) -> tuple[Array, ...]:
    """Sort values, and the columns of matrices with them."""
    axis = values.rank - 1

    def before(left: Array, right: Array) -> Array:
        return left > right if descending else left < right

    results = [sort([values], axis, before)[0]]
    for matrix in matrices:
        keys = as_rows(values, matrix.shape)
        if matrix.is_complex:
            _, real, imaginary = sort([keys, matrix.real, matrix.imag], matrix.rank - 1, before)
            results.append(real.joined(imaginary))
        else:
            results.append(sort([keys, matrix], matrix.rank - 1, before)[1])
    return tuple(results)


def _products(x: Array, y: Array) -> Array:
    """Multiply columns with columns: one number for each."""
    return total(conjugate(x) * y, [x.rank - 2])


def _singular_square(x: Array) -> tuple[Array, Array, Array]:
    """Return U, the singular values, descending, and V of a square matrix: its columns are rotated until orthogonal."""
    size = x.shape[-1]
    small = torch.finfo(x.dtype).eps
    columns = _padded(x, rows=False)
    vectors = identity((*x.shape[:-2], columns.shape[-1], columns.shape[-1]), x.dtype)

    def step(b: Array, v: Array, _largest: Array) -> list[Array]:
        first, second = _halves(b, b.rank - 1)
        left, right, between = _products(first, first).real, _products(second, second).real, _products(first, second)
        amount = modulus(between) if between.is_complex else between.apply("abs")
        bound = (left.apply("sqrt") * right.apply("sqrt")) * small
        # Below rounding there is nothing to gain, and the loop would never end.
        active = amount > bound
        between = active.where(between, 0)
        rotation = _angles(left, right, between)
        seen = any_of(active)
        return [_rotated(b, -1, rotation), _rotated(v, -1, rotation), seen | _largest]

    def body(sweep: Array, b: Array, v: Array, _again: Array) -> list[Array]:
        start = constant(0, torch.bool)
        count = columns.shape[-1] - 1
        return [sweep + 1, *repeat(count, [b, v, start], lambda _step, *inner: step(*inner))]

    if columns.shape[-1] > 1:
        initial = [constant(0, torch.int32), columns, vectors, constant(1, torch.bool)]
        _, columns, vectors, _ = while_loop(initial, lambda sweep, _b, _v, again: again & (sweep < _MOST_SWEEPS), body)
    columns, vectors = columns.slice(x.rank - 1, 0, size), cut(vectors, size, size)
    values = _products(columns, columns).real.apply("sqrt")
    values, columns, vectors = _ordered(values, [columns, vectors], descending=True)
    # Columns of length 0 have no direction: a QR factorization completes the others, up to their phases.
    lengths = as_rows(values, columns.shape).to(x.dtype)
    empty = lengths.equals(0)
    unit = empty.where(columns.full(0), columns / empty.where(lengths.full(1), lengths))
    basis, upper = decomposed(unit, complete=False)
    phases = as_rows(diagonal(upper), basis.shape)
    turned = modulus(phases) < 0.5 if phases.is_complex else phases.apply("abs") < 0.5  # noqa: PLR2004  0, not 1
    return turned.where(basis, unit), values, vectors


def singular(x: Array, *, full: bool) -> tuple[Array, Array, Array]:
    """Return U, singular values and V^H; U and V whole if ``full``, else with as many columns as there are values."""
    rows, columns = x.shape[-2:]
    if rows < columns:
        u, values, v = singular(adjoint(x), full=full)
        return adjoint(v), values, adjoint(u)
    basis, upper = decomposed(x, complete=full)
    u, values, v = _singular_square(cut(upper, columns, columns))
    axis = x.rank - 1
    inner = product(basis.slice(axis, 0, columns), u)
    left = concatenate([inner, basis.slice(axis, columns, rows)], axis) if full and rows > columns else inner
    return left, values, adjoint(v)


@lowers("aten._linalg_eigh.default")
def _eigh(call: Call, x: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array | None]:  # noqa: N803
    """Only one triangle is read, and of the diagonal the real part."""
    triangle = lower_triangle(x, 1) if UPLO.upper() == "L" else adjoint(upper_triangle(x, 1))
    own = identity(x.shape, torch.bool).where(x, 0).real.to(x.dtype)
    values, vectors = eigen(triangle + own + adjoint(triangle))
    return values, vectors if compute_v else unasked(call, 1)


@lowers("aten._linalg_svd.default")
def _svd(
    call: Call, x: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array | None, ...]:
    del driver
    u, values, v = singular(x, full=full_matrices and compute_uv)
    if compute_uv:
        return u, values, v
    return unasked(call, 0), values, unasked(call, 2)
