"""The gamma function's relatives: derivatives of its logarithm, Hurwitz's zeta function, the incomplete functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.loops import any_of, while_loop
from neuron_backend.lowering.promotion import pointwise
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Array, Operand
    from neuron_backend.lowering.registry import Call

_MOST_STEPS = 2000  # as in PyTorch's kernels


@lowers("aten.polygamma.default")
def _polygamma(call: Call, order: int, x: Array) -> Array:
    """Order 0 is digamma, with the infinity of PyTorch at zero; above 1 it is a multiple of the zeta function."""
    if order == 0:
        return pointwise(call, lambda a: a.equals(0).where(-(1 / a), a.apply("chlo.digamma")), x, wide=True)
    if order == 1:
        return pointwise(call, _trigamma, x, wide=True)
    factor = math.factorial(order) * (-1) ** (order + 1)
    return pointwise(call, lambda a: _zeta(a.full(order + 1), a) * factor, x, wide=True)


def _trigamma(x: Array) -> Array:
    """By the steps of PyTorch's kernel: reflection below 1/2, six steps up, the asymptotic series."""
    reflected = x < 0.5  # noqa: PLR2004  as there
    sine = (x * math.pi).apply("sine")
    at = reflected.where(1 - x, x)
    total = reflected.where(-(math.pi**2 / (sine * sine)), x.full(0))
    for _ in range(6):
        total = total + 1 / (at * at)
        at = at + 1
    inverse = 1 / (at * at)
    total = total + (1 / (at * 2) + 1 + inverse * (1 / 6 - inverse * (1 / 30 - inverse * (1 / 42)))) / at
    return reflected.where(-total, total)


# Of Euler and Maclaurin's formula: (2 k)! / B(2 k), from k = 1.
_ZETA_TERMS = (12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1307674368000 / 691, 74724249600.0)
_ZETA_SUMMED = 9  # terms of the series before it, and the least number that it begins at
_ZETA_MOST = 10_000  # terms for a negative number, one for each step up to there; beyond it the result is NaN


def _zeta(x: Array, q: Array) -> Array:
    """Sum (q + k)^-x over k by Cephes' algorithm; CHLO's has no negative ``q`` with an integer ``x``."""
    least = torch.finfo(x.dtype).eps / 2
    pole = (x > 1) & (q <= 0) & q.equals(q.apply("floor"))
    at = pole.where(1, q)

    def body(step: Array, at: Array, term: Array, total: Array) -> tuple[list[Array], Array]:
        at = at + 1
        term = at.apply("power", -x)
        total = total + term
        small = term.apply("abs") < total.apply("abs") * least
        return [at, term, total], small | ((step >= _ZETA_SUMMED) & (at > _ZETA_SUMMED))

    first = at.apply("power", -x)
    at, term, total = _converging((x > 1) & ~q.is_nan(), [at, first, first], body, _ZETA_MOST)
    rest = term * at / (x - 1) - term * 0.5
    factor, power = x, term / at
    for index, bernoulli in enumerate(_ZETA_TERMS):
        rest = rest + factor * power / bernoulli
        factor = factor * (x + (2 * index + 1)) * (x + (2 * index + 2))
        power = power / (at * at)
    small = term.apply("abs") < total.apply("abs") * least
    result = small.where(total, total + rest)
    result = (small | (at > _ZETA_SUMMED)).where(result, math.nan)
    broken = (x < 1) | ((q <= 0) & ~x.equals(x.apply("floor"))) | x.is_nan() | q.is_nan()
    return x.equals(1).where(math.inf, pole.where(math.inf, broken.where(math.nan, result)))


lowers(
    "aten.special_zeta.default", "aten.special_zeta.self_scalar", "aten.special_zeta.other_scalar", "prims.zeta.default"
)(lambda call, x, q: pointwise(call, _zeta, x, q, wide=True))


def _prefactor(a: Array, x: Array) -> Array:
    """Return x^a exp(-x) / gamma(a).

    Where a and x are close its three factors are huge: there Stirling's series takes their logarithms together.
    """
    direct = a * x.apply("log") - x - a.apply("chlo.lgamma")
    # log gamma(a) = (a - 1/2) log a - a + log(2 pi) / 2 + 1 / (12 a) - 1 / (360 a^3) + 1 / (1260 a^5) - ...
    inverse = 1 / a
    square = inverse * inverse
    tail = inverse * ((square / 1260 - 1 / 360) * square + 1 / 12)
    distance = (x - a) / a
    together = a * (distance.apply("log_plus_one") - distance) + (a / (2 * math.pi)).apply("log") * 0.5 - tail
    close = (a > 10) & (distance.apply("abs") < 0.4)  # noqa: PLR2004  the second as in PyTorch's kernels
    return close.where(together, direct).apply("exponential")


def _converging(
    active: Array, state: list[Array], body: Callable[..., tuple[list[Array], Array]], most: int = _MOST_STEPS
) -> list[Array]:
    """Repeat ``body(step, *state)``, which gives the new state and where it has converged, until that is everywhere."""

    def advance(step: Array, running: Array, *arrays: Array) -> list[Array]:
        new, done = body((step + 1).broadcast(running.shape), *arrays)
        kept = [running.where(after, before) for after, before in zip(new, arrays, strict=True)]
        return [step + 1, running & ~done, *kept]

    start = constant(0, state[0].dtype)
    _, _, *result = while_loop(
        [start, active, *state], lambda step, running, *_: any_of(running) & (step < most), advance
    )
    return result


def _lower_series(active: Array, a: Array, x: Array) -> Array:
    """DLMF 8.11.4."""
    tiny = torch.finfo(a.dtype).eps / 2

    def body(step: Array, term: Array, total: Array) -> tuple[list[Array], Array]:
        term = term * x / (a + step)
        total = total + term
        return [term, total], term <= total * tiny

    _, total = _converging(active, [a.full(1), a.full(1)], body)
    return total * _prefactor(a, x) / a


def _upper_series(active: Array, a: Array, x: Array) -> Array:
    """DLMF 8.7.3, without the cancellation of 1 - P for small x."""
    tiny = torch.finfo(a.dtype).eps / 2

    def body(step: Array, factor: Array, total: Array) -> tuple[list[Array], Array]:
        factor = -(factor * x) / step
        term = factor / (a + step)
        total = total + term
        return [factor, total], term.apply("abs") <= total.apply("abs") * tiny

    _, total = _converging(active, [a.full(1), a.full(0)], body)
    log = x.apply("log")
    whole = -(a * log - (a + 1).apply("chlo.lgamma")).apply("exponential_minus_one")
    return whole - (a * log - a.apply("chlo.lgamma")).apply("exponential") * total


def _upper_fraction(active: Array, a: Array, x: Array) -> Array:
    """DLMF 8.9.2 by Lentz's method."""
    least = torch.finfo(a.dtype).tiny * 4
    tiny = torch.finfo(a.dtype).eps

    def nonzero(value: Array) -> Array:
        return (value.apply("abs") < least).where(value.full(least), value)

    first = nonzero(x + 1 - a)

    def body(step: Array, ascending: Array, descending: Array, total: Array) -> tuple[list[Array], Array]:
        numerator = step * (a - step)
        denominator = step * 2 + x + 1 - a
        descending = 1 / nonzero(numerator * descending + denominator)
        ascending = nonzero(numerator / ascending + denominator)
        change = ascending * descending
        return [ascending, descending, total * change], (change - 1).apply("abs") <= tiny

    start = 1 / first
    _, _, total = _converging(active, [x.full(1 / least), start, start], body)
    return total * _prefactor(a, x)


def _incomplete(a: Array, x: Array) -> tuple[Array, Array]:
    """Return P and Q, the regularised incomplete functions below and above x; each chosen where it does not cancel."""
    inner = (a > 0) & (x > 0) & (a < math.inf) & (x < math.inf)
    a_, x_ = inner.where(a, 1), inner.where(x, 1)
    fraction = inner & (x_ > 1.1) & (x_ >= a_)  # noqa: PLR2004  the regions of PyTorch's kernels
    near_zero = (x_ <= 0.5).where(-0.4 / x_.apply("log") >= a_, x_ * 1.1 >= a_)  # noqa: PLR2004
    upper = inner & ~(x_ > 1.1) & near_zero  # noqa: PLR2004
    lower = inner & ~fraction & ~upper
    p = _lower_series(lower, a_, x_)
    q = fraction.where(_upper_fraction(fraction, a_, x_), _upper_series(upper, a_, x_))
    below, above = lower.where(p, 1 - q), lower.where(1 - p, q)
    zero = x.equals(0) | (a.equals(math.inf) & (x < math.inf))
    one = a.equals(0) | x.equals(math.inf)
    wrong = (a < 0) | (x < 0) | (a.equals(0) & x.equals(0)) | (a.equals(math.inf) & x.equals(math.inf))
    wrong = wrong | a.is_nan() | x.is_nan()

    def at_edges(value: Array, least: float, most: float) -> Array:
        value = zero.where(least, one.where(most, value))
        return wrong.where(math.nan, value)

    return at_edges(below, 0, 1), at_edges(above, 1, 0)


def _incomplete_part(part: int) -> Callable[..., Array]:
    def lowering(call: Call, a: Operand, x: Operand) -> Array:
        return pointwise(call, lambda first, second: _incomplete(first, second)[part], a, x, wide=True)

    return lowering


lowers("aten.igamma.default", "aten.special_gammainc.default")(_incomplete_part(0))
lowers("aten.igammac.default", "aten.special_gammaincc.default")(_incomplete_part(1))
