"""Bessel functions of the orders 0 and 1, and Airy's: by the approximations and in the ranges of PyTorch's kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neuron_backend.lowering import special_coefficients as table
from neuron_backend.lowering.promotion import pointwise
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.series import chebyshev, polynomial, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Array

_NEAR = 5.0  # up to here J and Y have rational approximations of their own
_MODIFIED_NEAR = 8.0
_SECOND_KIND_NEAR = 2.0
_J0_ROOTS = (5.78318596294678452118, 30.4712623436620863991)  # squares of the first two
_J1_ROOTS = (14.6819706421238932572, 49.2184563216946036703)
_TWO_OVER_PI = 2 / math.pi


def _far(x: Array, order: int, wave: Callable[[Array], tuple[Array, Array]]) -> Array:
    """Return the asymptotic form for large positive ``x``: ``wave`` gives the two oscillating factors of the phase."""
    shift = math.pi / 4 if order == 0 else 3 * math.pi / 4
    names = ("J0" if order == 0 else "J1") + "_"
    tables: Sequence[Sequence[float]] = [getattr(table, names + part) for part in ("PP", "PQ", "QP", "QQ")]
    inverse = x.full(_NEAR) / x
    squared = inverse * inverse
    first, second = wave(x - shift)
    sides = ratio(squared, tables[0], tables[1]) * first + inverse * ratio(squared, tables[2], tables[3]) * second
    return sides * math.sqrt(_TWO_OVER_PI) / x.apply("sqrt")


def _cosine_minus_sine(phase: Array) -> tuple[Array, Array]:
    return phase.apply("cosine"), -phase.apply("sine")


def _sine_and_cosine(phase: Array) -> tuple[Array, Array]:
    return phase.apply("sine"), phase.apply("cosine")


def _j0(x: Array) -> Array:
    x = x.apply("abs")
    square = x * x
    near = (square - _J0_ROOTS[0]) * (square - _J0_ROOTS[1]) * ratio(square, table.J0_RP, table.J0_RQ)
    near = (x < 1e-5).where(1 - square / 4, near)  # noqa: PLR2004  where PyTorch's kernel changes the form
    return (x <= _NEAR).where(near, _far(x, 0, _cosine_minus_sine))


def _j1(x: Array) -> Array:
    size = x.apply("abs")
    square = size * size
    near = ratio(square, table.J1_RP, table.J1_RQ) * size * (square - _J1_ROOTS[0]) * (square - _J1_ROOTS[1])
    positive = (size <= _NEAR).where(near, _far(size, 1, _cosine_minus_sine))
    return (x < 0).where(-positive, positive)


def _y0(x: Array) -> Array:
    square = x * x
    near = ratio(square, table.Y0_YP, table.Y0_YQ) + x.apply("log") * _j0(x) * _TWO_OVER_PI
    near = x.equals(0).where(-math.inf, near)
    return (x <= _NEAR).where(near, _far(x, 0, _sine_and_cosine))


def _y1(x: Array) -> Array:
    square = x * x
    near = x * ratio(square, table.Y1_YP, table.Y1_YQ) + (_j1(x) * x.apply("log") - 1 / x) * _TWO_OVER_PI
    near = x.equals(0).where(-math.inf, near)
    return (x <= _NEAR).where(near, _far(x, 1, _sine_and_cosine))


def _scaled_first_kind(size: Array, near: Sequence[float], far: Sequence[float], order: int) -> Array:
    """Return exp(-x) I(x) of ``size``, which is not negative."""
    close = chebyshev(size / 2 - 2.0, near)
    wide = chebyshev(size.full(32.0) / size - 2.0, far) / size.apply("sqrt")
    return (size <= _MODIFIED_NEAR).where(close * size if order else close, wide)


def _i0e(x: Array) -> Array:
    return _scaled_first_kind(x.apply("abs"), table.I0_A, table.I0_B, 0)


def _i0(x: Array) -> Array:
    return _i0e(x) * x.apply("abs").apply("exponential")


def _i1e(x: Array) -> Array:
    positive = _scaled_first_kind(x.apply("abs"), table.I1_A, table.I1_B, 1)
    return (x < 0).where(-positive, positive)


def _i1(x: Array) -> Array:
    return _i1e(x) * x.apply("abs").apply("exponential")


def _second_kind(x: Array, order: int, *, scaled: bool) -> Array:
    """Return K, times exp(x) if ``scaled``: inf at 0, NaN below."""
    half_log = (x * 0.5).apply("log")
    square = x * x - 2.0
    if order == 0:
        near = chebyshev(square, table.K0_A) - half_log * _i0(x)
        far = chebyshev(x.full(8.0) / x - 2.0, table.K0_B) / x.apply("sqrt")
    else:
        near = half_log * _i1(x) + chebyshev(square, table.K1_A) / x
        far = chebyshev(x.full(8.0) / x - 2.0, table.K1_B) / x.apply("sqrt")
    if scaled:
        near = near * x.apply("exponential")
    else:
        far = far * (-x).apply("exponential")
    result = (x <= _SECOND_KIND_NEAR).where(near, far)
    return x.equals(0).where(math.inf, (x < 0).where(math.nan, result))


def _spherical_j0(x: Array) -> Array:
    square = x * x
    near = polynomial(square, [(-1) ** power / math.factorial(2 * power + 1) for power in range(6, -1, -1)])
    size = x.apply("abs")
    far = size.equals(math.inf).where(x.full(0), x.apply("sine") / x)
    return (size < 0.5).where(near, far)  # noqa: PLR2004  where PyTorch's kernel changes the form


_AIRY_AT_0 = 0.355028053887817239260
_AIRY_SLOPE_AT_0 = 0.258819403792806798405
_AIRY_NEAR = 2.09
_AIRY_ZERO = 103.892  # from here on Ai is less than any float
_AIRY_TERMS = 14  # of the power series, for a double's precision up to _AIRY_NEAR


def _airy_near(x: Array) -> Array:
    """Sum the power series."""
    cube, even, odd = x * x * x, x.full(1), x
    first, second = even, odd
    for term in range(1, _AIRY_TERMS + 1):
        first = first * cube / ((3 * term - 1) * (3 * term))
        second = second * cube / ((3 * term) * (3 * term + 1))
        even, odd = even + first, odd + second
    return even * _AIRY_AT_0 - odd * _AIRY_SLOPE_AT_0


def _airy(x: Array) -> Array:
    size = x.apply("abs")
    root = size.apply("sqrt")
    zeta = size * root * 2 / 3
    inverse = 1 / zeta
    scale = 1 / math.sqrt(math.pi) / root.apply("sqrt")
    right = scale * ratio(inverse, table.AI_AN, table.AI_AD) / (zeta.apply("exponential") * 2)
    square, phase = inverse * inverse, zeta + math.pi / 4
    cosine_part = inverse * ratio(square, table.AI_AGN, table.AI_AGD)
    sine_part = square * ratio(square, table.AI_AFN, table.AI_AFD) + 1
    left = scale * (phase.apply("sine") * sine_part - phase.apply("cosine") * cosine_part)
    inner = (x >= -_AIRY_NEAR) & (x < _AIRY_NEAR)
    result = inner.where(_airy_near(inner.where(x, 0)), (x < 0).where(left, right))
    result = (x > _AIRY_ZERO).where(x.full(0), result)
    return size.equals(math.inf).where(math.nan, result)


def _registered(names: Sequence[str], function: Callable[[Array], Array]) -> None:
    for name in names:
        lowers(f"aten.{name}.default")(lambda call, x: pointwise(call, function, x, wide=True))


_registered(["i0", "special_i0", "special_modified_bessel_i0"], _i0)
_registered(["special_i0e"], _i0e)
_registered(["special_i1", "special_modified_bessel_i1"], _i1)
_registered(["special_i1e"], _i1e)
_registered(["special_modified_bessel_k0"], lambda x: _second_kind(x, 0, scaled=False))
_registered(["special_modified_bessel_k1"], lambda x: _second_kind(x, 1, scaled=False))
_registered(["special_scaled_modified_bessel_k0"], lambda x: _second_kind(x, 0, scaled=True))
_registered(["special_scaled_modified_bessel_k1"], lambda x: _second_kind(x, 1, scaled=True))
_registered(["special_bessel_j0"], _j0)
_registered(["special_bessel_j1"], _j1)
_registered(["special_bessel_y0"], _y0)
_registered(["special_bessel_y1"], _y1)
_registered(["special_spherical_bessel_j0"], _spherical_j0)
_registered(["special_airy_ai"], _airy)
