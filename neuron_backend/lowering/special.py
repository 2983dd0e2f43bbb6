"""Special functions that have no family: of the normal distribution, of a float's parts, of integers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from neuron_backend.lowering import special_coefficients as table
from neuron_backend.lowering.arithmetic import as_bits
from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.loops import any_of, while_loop
from neuron_backend.lowering.promotion import pointwise
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.series import chebyshev, ratio

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array, Operand
    from neuron_backend.lowering.registry import Call

_TAIL = math.exp(-2)  # ndtri changes its form here,
_FAR_TAIL = 8.0  # and again where sqrt(-2 log y) passes this
_CENTRE = 3.75


def _inverse_normal(y: Array) -> Array:
    """Quantiles of the normal distribution by Cephes' approximations."""
    upper = y > 1 - _TAIL
    tail = upper.where(1 - y, y)
    centred = tail - 0.5
    square = centred * centred
    middle = (centred + centred * (square * ratio(square, table.NDTRI_P0, table.NDTRI_Q0))) * math.sqrt(2 * math.pi)
    root = (tail.apply("log") * -2.0).apply("sqrt")
    inverse = 1 / root
    near, far = ratio(inverse, table.NDTRI_P1, table.NDTRI_Q1), ratio(inverse, table.NDTRI_P2, table.NDTRI_Q2)
    outer = root - root.apply("log") / root - inverse * (root < _FAR_TAIL).where(near, far)
    result = (tail > _TAIL).where(middle, upper.where(outer, -outer))
    result = y.equals(0).where(-math.inf, y.equals(1).where(math.inf, result))
    return ((y < 0) | (y > 1)).where(math.nan, result)


def scaled_complement(x: Array) -> Array:
    """Return exp(x²) erfc(x) without overflow or loss for positive ``x``."""
    size = x.apply("abs")
    series = chebyshev(2 - size.full(4 * _CENTRE) / (size + _CENTRE), table.ERFCX) / (size * 2 + 1)
    return (x < 0).where((x * x).apply("exponential") * 2 - series, series)


lowers("aten.special_ndtri.default")(lambda call, x: pointwise(call, _inverse_normal, x, wide=True))
lowers("aten.special_erfcx.default")(lambda call, x: pointwise(call, scaled_complement, x, wide=True))


class _Layout(NamedTuple):
    integer: torch.dtype
    digits: int  # stored ones of the mantissa
    bias: int


_LAYOUTS = {torch.float32: _Layout(torch.int32, 23, 127), torch.float64: _Layout(torch.int64, 52, 1023)}


@lowers("aten.frexp.Tensor")
def _mantissa_and_exponent(_call: Call, x: Array) -> tuple[Array, Array]:
    """Take x apart to m * 2^e with 0.5 <= abs(m) < 1, by its bits; 0, inf and NaN are their own m, with e = 0."""
    wide = x.to(accumulator(x.dtype))
    integer, digits, bias = _LAYOUTS[wide.dtype]
    mask = 2 * bias + 1
    bits = as_bits(wide, integer)
    fraction = bits & ((1 << digits) - 1)
    field = bits.apply("shift_right_logical", digits) & mask
    # A subnormal number has no leading digit, and many targets take it for 0: its fraction is read as an integer.
    small = field.equals(0)
    bits = small.where(
        as_bits(fraction.to(wide.dtype), integer) | (bits & ~((1 << 8 * bits.dtype.itemsize - 1) - 1)), bits
    )
    shift = small.where(bits.full(1 - bias - digits), 0)
    exponent = (bits.apply("shift_right_logical", digits) & mask) - (bias - 1) + shift
    mantissa = as_bits((bits & ~(mask << digits)) | ((bias - 1) << digits), wide.dtype)
    whole = (small & fraction.equals(0)) | field.equals(mask)
    return whole.where(wide, mantissa).to(x.dtype), whole.where(exponent.full(0), exponent).to(torch.int32)


def _greatest_common_divisor(a: Array, b: Array) -> Array:
    """Euclid's algorithm on all elements until the last has ended."""
    if a.dtype != torch.uint8:
        a, b = a.apply("abs"), b.apply("abs")

    def body(x: Array, y: Array) -> list[Array]:
        more = y.differs(0)
        rest = x.apply("remainder", more.where(y, 1))
        return [more.where(y, x), more.where(rest, y)]

    return while_loop([a, b], lambda _x, y: any_of(y.differs(0)), body)[0]


def _least_common_multiple(a: Array, b: Array) -> Array:
    divisor = _greatest_common_divisor(a, b)
    product = a / divisor.equals(0).where(1, divisor) * b
    return product if product.dtype == torch.uint8 else product.apply("abs")


@lowers("aten.gcd.default", "prims.gcd.default")
def _gcd(call: Call, a: Operand, b: Operand) -> Array:
    return pointwise(call, _greatest_common_divisor, a, b)


@lowers("aten.lcm.default")
def _lcm(call: Call, a: Operand, b: Operand) -> Array:
    return pointwise(call, _least_common_multiple, a, b)
