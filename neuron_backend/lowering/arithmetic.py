"""Element-wise operators of two operands and more, but for comparisons and division."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array
from neuron_backend.lowering.dtypes import tensor_type
from neuron_backend.lowering.promotion import compute_dtype, pointwise
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import conform

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Number, Operand
    from neuron_backend.lowering.registry import Call


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
    if alpha == 1:
        return pointwise(call, function, left, right)
    compute = compute_dtype(out.dtype, left, right, alpha)
    first, second = (conform(each, compute, out.shape) for each in (left, right))
    return function(first, second * alpha).to(out.dtype)


@lowers("aten.mul.Tensor", "aten.mul.Scalar", "prims.mul.default")
def _multiply(call: Call, left: Operand, right: Operand) -> Array:
    return pointwise(call, lambda a, b: a * b, left, right)


def _raised(base: Array, exponent: Array) -> Array:
    """Return a power. Of an integer's exponent XLA looks at six bits, so these are six of its at a time."""
    power = base.apply("power", exponent)
    if base.is_float or base.is_complex:
        return power
    negative = exponent < 0
    limits = torch.iinfo(base.dtype)
    result, bits = base.apply("power", exponent & 63), limits.max.bit_length() - 6
    while bits > 0:
        for _ in range(6):
            base = base * base
        exponent = exponent.apply("shift_right_logical", exponent.full(6))
        result, bits = result * base.apply("power", exponent & 63), bits - 6
    return result if limits.min == 0 else negative.where(power, result)


lowers("aten.pow.Tensor_Tensor", "aten.pow.Scalar", "prims.pow.default")(
    lambda call, left, right: pointwise(call, _raised, left, right, wide=True)
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
    if exponent in shortcuts:
        return pointwise(call, shortcuts[exponent], base, wide=True)
    if isinstance(exponent, int) and abs(exponent) < 64:  # noqa: PLR2004 - six bits
        return pointwise(call, lambda a, b: a.apply("power", b), base, exponent, wide=True)
    return pointwise(call, _raised, base, exponent, wide=True)


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


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(x: Array, dtype: torch.dtype) -> Array:
    """Read the same bits as another type of the same size."""
    return Array(hlo.bitcast_convert(tensor_type(x.shape, dtype), x.value), dtype, x.shape)


def negative_sign(x: Array) -> Array:
    """Whether the sign is set, also that of -0.0 and of NaN, which no comparison tells."""
    return (as_bits(x, _INTEGERS[x.dtype.itemsize]) if x.is_float else x) < 0


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
