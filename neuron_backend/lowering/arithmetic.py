"""Element-wise operators of two operands, and those with three that are made of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neuron_backend.lowering.promotion import compute_dtype, pointwise
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Array, Number, Operand
    from neuron_backend.lowering.builder import Call


@lowers("aten.add.Tensor", "aten.add.Scalar", "prims.add.default")
def _add(call: Call, left: Operand, right: Operand, *, alpha: Number = 1) -> Array:
    return _scaled(call, lambda a, b: a + b, left, right, alpha)


@lowers("aten.sub.Tensor", "aten.sub.Scalar", "prims.sub.default")
def _subtract(call: Call, left: Operand, right: Operand, *, alpha: Number = 1) -> Array:
    return _scaled(call, lambda a, b: a - b, left, right, alpha)


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def _reverse_subtract(call: Call, left: Operand, right: Operand, alpha: Number = 1) -> Array:
    return _scaled(call, lambda a, b: a - b, right, left, alpha)


def _scaled(
    call: Call, function: Callable[[Array, Array], Array], left: Operand, right: Operand, alpha: Number
) -> Array:
    out = call.out
    if alpha == 1 and not call.builder.is_lifted(alpha):
        return pointwise(call, function, left, right)
    compute = compute_dtype(call, out.dtype, left, right, alpha)
    first, second = (call.builder.operand(each, compute, out.shape) for each in (left, right))
    return function(first, second * alpha).to(out.dtype)


@lowers("aten.mul.Tensor", "aten.mul.Scalar", "prims.mul.default")
def _multiply(call: Call, left: Operand, right: Operand) -> Array:
    return pointwise(call, lambda a, b: a * b, left, right)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode", "prims.div.default")
def _divide(call: Call, left: Operand, right: Operand, *, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return pointwise(call, floor_quotient, left, right, wide=True)
    if rounding_mode == "trunc":
        return pointwise(call, _truncated_quotient, left, right, wide=True)
    return pointwise(call, lambda a, b: a / b, left, right)


def truncate(x: Array) -> Array:
    """Round towards zero."""
    return (x < 0).where(x.apply("ceil"), x.apply("floor")) if x.is_float else x


def _truncated_quotient(a: Array, b: Array) -> Array:
    return truncate(a / b)


def modulo(a: Array, b: Array) -> Array:
    """Remainder with the sign of the divisor, as Python's ``%``; NaN for a float divided by zero."""
    rest = a.apply("remainder", b)
    return _opposite(rest, b).where(rest + b, rest)


def _opposite(rest: Array, divisor: Array) -> Array:
    """Where a truncated division left a rest whose sign is not the divisor's."""
    return rest.differs(0) & ((rest < 0) ^ (divisor < 0))


def floor_quotient(a: Array, b: Array) -> Array:
    """Quotient rounded down, by the steps of PyTorch's ``div_floor_floating``; a / 0 is inf or NaN for floats."""
    rest = a.apply("remainder", b)
    if not a.is_float:
        quotient = a / b
        return _opposite(rest, b).where(quotient - 1, quotient)
    quotient = (a - rest) / b
    quotient = _opposite(rest, b).where(quotient - 1, quotient)
    half = 0.5
    floor = quotient.apply("floor")
    floor = (quotient - floor > half).where(floor + 1, floor)
    zero = (a / b) * 0
    return b.equals(0).where(a / b, quotient.equals(0).where(zero, floor))


lowers("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")(
    lambda call, left, right: pointwise(call, modulo, left, right, wide=True)
)
lowers("aten.fmod.Tensor", "aten.fmod.Scalar", "prims.fmod.default")(
    lambda call, left, right: pointwise(call, lambda a, b: a.apply("remainder", b), left, right, wide=True)
)
lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")(
    lambda call, left, right: pointwise(call, floor_quotient, left, right, wide=True)
)
lowers("aten.pow.Tensor_Tensor", "aten.pow.Scalar", "prims.pow.default")(
    lambda call, left, right: pointwise(call, lambda a, b: a.apply("power", b), left, right, wide=True)
)


@lowers("aten.pow.Tensor_Scalar")
def _power(call: Call, base: Array, exponent: Number) -> Array:
    """Powers that PyTorch computes without ``pow`` are computed so here."""
    shortcuts: dict[Number, Callable[[Array], Array]] = {
        1: lambda x: x,
        2: lambda x: x * x,
        3: lambda x: x * x * x,
    }
    if call.out.dtype.is_floating_point:
        shortcuts |= {
            0.5: lambda x: x.apply("sqrt"),
            -0.5: lambda x: x.apply("rsqrt"),
            -1: lambda x: 1 / x,
            -2: lambda x: 1 / (x * x),
        }
    if exponent in shortcuts and not call.builder.is_lifted(exponent):
        return pointwise(call, shortcuts[exponent], base, wide=True)
    return pointwise(call, lambda a, b: a.apply("power", b), base, exponent, wide=True)


def _binary(name: str) -> Callable[..., Array]:
    return lambda call, left, right: pointwise(call, lambda a, b: a.apply(name, b), left, right)


# maximum and minimum pass NaN on, as PyTorch's do.
lowers("aten.maximum.default", "prims.maximum.default")(_binary("maximum"))
lowers("aten.minimum.default", "prims.minimum.default")(_binary("minimum"))
lowers("aten.atan2.default", "prims.atan2.default")(
    lambda call, left, right: pointwise(call, lambda a, b: a.apply("atan2", b), left, right, wide=True)
)
lowers(
    "aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar", "aten.bitwise_and.Scalar_Tensor", "prims.bitwise_and.default"
)(_binary("and_"))
lowers("aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar", "aten.bitwise_or.Scalar_Tensor", "prims.bitwise_or.default")(
    _binary("or_")
)
lowers(
    "aten.bitwise_xor.Tensor", "aten.bitwise_xor.Scalar", "aten.bitwise_xor.Scalar_Tensor", "prims.bitwise_xor.default"
)(_binary("xor"))


def _ignoring_nan(name: str) -> Callable[..., Array]:
    """Lower an extreme that is NaN only where both operands are."""

    def choose(a: Array, b: Array) -> Array:
        return a.is_nan().where(b, b.is_nan().where(a, a.apply(name, b))) if a.is_float else a.apply(name, b)

    return lambda call, left, right: pointwise(call, choose, left, right)


lowers("aten.fmax.default", "prims.fmax.default")(_ignoring_nan("maximum"))
lowers("aten.fmin.default", "prims.fmin.default")(_ignoring_nan("minimum"))


def negative_sign(x: Array) -> Array:
    """Whether the sign is set, also that of -0.0, whose reciprocal is negative; not told apart for NaN."""
    return (x < 0) | (x.equals(0) & (1 / x < 0)) if x.is_float else x < 0


def _copy_sign(magnitude: Array, sign: Array) -> Array:
    positive = magnitude.apply("abs")
    return negative_sign(sign).where(-positive, positive)


lowers("aten.copysign.Tensor", "aten.copysign.Scalar")(
    lambda call, left, right: pointwise(call, _copy_sign, left, right, wide=True)
)


def _hypotenuse(a: Array, b: Array) -> Array:
    """sqrt(a² + b²) without overflow: the larger taken out of the root. inf wins over NaN."""
    a, b = a.apply("abs"), b.apply("abs")
    large, small = a.apply("maximum", b), a.apply("minimum", b)
    ratio = small / large
    root = large * (ratio * ratio + 1).apply("sqrt")
    infinite = a.equals(math.inf) | b.equals(math.inf)
    return infinite.where(math.inf, large.equals(0).where(0, root))


lowers("aten.hypot.default", "prims.hypot.default")(
    lambda call, left, right: pointwise(call, _hypotenuse, left, right, wide=True)
)
lowers("aten.ldexp.Tensor")(
    lambda call, left, right: pointwise(call, lambda a, b: a * a.full(2).apply("power", b), left, right, wide=True)
)
lowers("aten.nextafter.default", "prims.nextafter.default")(_binary("chlo.next_after"))
lowers("aten.bitwise_left_shift.Tensor", "prims.shift_left.default")(_binary("shift_left"))
lowers("aten.bitwise_right_shift.Tensor", "prims.shift_right_arithmetic.default")(_binary("shift_right_arithmetic"))


@lowers("aten.clamp.default", "aten.clamp.Tensor")
def _clamp(call: Call, x: Array, low: Operand | None = None, high: Operand | None = None) -> Array:
    """NaN passes through; where the bounds cross, the upper one counts."""
    bounds = [bound for bound in (low, high) if bound is not None]
    names = [name for name, bound in (("maximum", low), ("minimum", high)) if bound is not None]

    def limit(value: Array, *limits: Array) -> Array:
        for name, bound in zip(names, limits, strict=True):
            value = value.apply(name, bound)
        return value

    return pointwise(call, limit, x, *bounds)


@lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")
def _clamp_min(call: Call, x: Array, low: Operand) -> Array:
    return _clamp(call, x, low)


@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def _clamp_max(call: Call, x: Array, high: Operand) -> Array:
    return _clamp(call, x, None, high)
