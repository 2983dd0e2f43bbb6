"""Orthogonal polynomials of a degree that may be a tensor: by their recurrences, in one loop for all degrees.

Between -1 and 1 Chebyshev polynomials of higher degree are computed from the angle, as in PyTorch's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.loops import while_loop
from neuron_backend.lowering.promotion import pointwise
from neuron_backend.lowering.reductions import fold
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Array, Operand
    from neuron_backend.lowering.registry import Call

# Degrees at and beyond this are no int64; PyTorch converts them to a negative one.
_TOO_LARGE = float(1 << 63)


@dataclass(frozen=True, slots=True)
class Family:
    """Polynomials P(n) with P(0) = 1, P(1) = ``first(x)`` and P(k + 1) = ``step(x, k, P(k), P(k - 1))``.

    ``closed(x, n)`` replaces the recurrence where ``abs(x) < 1`` and the degree is over ``most``.
    """

    first: Callable[[Array], Array]
    step: Callable[[Array, Array, Array, Array], Array]
    closed: Callable[[Array, Array], Array] | None = None
    most: int = 0


def evaluate(family: Family, x: Array, degree: Array) -> Array:
    """Return the polynomials of ``degree``, cut to an integer, at ``x``; 0 where it is negative or no number."""
    one = x.full(1)
    n = (degree < 0).where(degree.apply("ceil"), degree.apply("floor"))
    known = (n >= 0) & (n < _TOO_LARGE)
    n = known.where(n, 0)
    steps, closed = n, None
    if family.closed is not None:
        inside = (x.apply("abs") < 1) & (n > family.most)
        closed = (inside, family.closed(x, n))
        steps = inside.where(n.full(0), n)
    last = fold(steps, range(steps.rank), "maximum", 0)

    def body(k: Array, before: Array, current: Array) -> list[Array]:
        index = k.broadcast(x.shape)
        following = family.step(x, index, current, before)
        running = index < steps
        return [k + 1, running.where(current, before), running.where(following, current)]

    start = constant(1, x.dtype)
    _, _, value = while_loop([start, one, family.first(x)], lambda k, *_: k < last, body)
    value = n.equals(0).where(one, value)
    if closed is not None:
        value = closed[0].where(closed[1], value)
    return known.where(value, x.full(0))


def _chebyshev(x: Array, _k: Array, current: Array, before: Array) -> Array:
    return (x + x) * current - before


def _angle(x: Array) -> Array:
    return x.apply("chlo.acos")


def _edge(x: Array, n: Array) -> Array:
    """Return n + 1 with the sign that U has near -1 and 1, where its two sines vanish."""
    return (n + 1) * ((n + 1) * _angle(x)).apply("cosine") / x


def _second_closed(x: Array, n: Array) -> Array:
    sine = _angle(x).apply("sine")
    return sine.equals(0).where(_edge(x, n), ((n + 1) * _angle(x)).apply("sine") / sine)


_T = Family(lambda x: x, _chebyshev, lambda x, n: (n * _angle(x)).apply("cosine"), 6)
_U = Family(lambda x: x + x, _chebyshev, _second_closed, 8)
_V = Family(
    lambda x: x + x - 1,
    _chebyshev,
    lambda x, n: ((n + 0.5) * _angle(x)).apply("cosine") / (_angle(x) / 2).apply("cosine"),
    8,
)
_W = Family(
    lambda x: x + x + 1,
    _chebyshev,
    lambda x, n: ((n + 0.5) * _angle(x)).apply("sine") / (_angle(x) / 2).apply("sine"),
    8,
)
_H = Family(lambda x: x + x, lambda x, k, p, q: (x + x) * p - (k + k) * q)
_HE = Family(lambda x: x, lambda x, k, p, q: x * p - k * q)
_L = Family(lambda x: 1 - x, lambda x, k, p, q: ((k + k + (1 - x)) * p - k * q) / (k + 1))
_P = Family(lambda x: x, lambda x, k, p, q: ((k + k + 1) * x * p - k * q) / (k + 1))


def _register(name: str, family: Family, *, shifted: bool = False) -> None:
    def lowering(call: Call, x: Operand, n: Operand) -> Array:
        return pointwise(call, lambda a, b: evaluate(family, a + a - 1 if shifted else a, b), x, n, wide=True)

    lowers(*(f"aten.special_{name}.{overload}" for overload in ("default", "n_scalar", "x_scalar")))(lowering)


for _name, _family in {
    "chebyshev_polynomial_t": _T,
    "chebyshev_polynomial_u": _U,
    "chebyshev_polynomial_v": _V,
    "chebyshev_polynomial_w": _W,
    "hermite_polynomial_h": _H,
    "hermite_polynomial_he": _HE,
    "laguerre_polynomial_l": _L,
    "legendre_polynomial_p": _P,
}.items():
    _register(_name, _family)
    if _name.startswith("chebyshev"):
        _register(f"shifted_{_name}", _family, shifted=True)
