"""Polynomials and Chebyshev series with given coefficients."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array


def polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """Evaluate by Horner's scheme; the coefficient of the highest power comes first."""
    result = x.full(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def ratio(x: Array, above: Sequence[float], below: Sequence[float]) -> Array:
    """Divide two polynomials."""
    return polynomial(x, above) / polynomial(x, below)


def chebyshev(x: Array, coefficients: Sequence[float]) -> Array:
    """Evaluate a Chebyshev series at x / 2 by Clenshaw's recurrence: the form of Cephes' tables.

    The coefficient of the highest polynomial comes first; the last number is twice the constant.
    """
    before, current, older = x.full(0), x.full(coefficients[0]), x.full(0)
    for coefficient in coefficients[1:]:
        older, before = before, current
        current = x * before - older + coefficient
    return (current - older) * 0.5
