"""Division, its roundings and remainders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_backend.lowering.promotion import pointwise
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array, Operand
    from neuron_backend.lowering.registry import Call

# Where a quotient lies above its floor by more than this, the division before it was rounded.
_HALF = 0.5


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode", "prims.div.default")
def _divide(call: Call, left: Operand, right: Operand, *, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return pointwise(call, floor_quotient, left, right, wide=True)
    if rounding_mode == "trunc":
        # Of the rounded quotient: PyTorch's kernels divide in the 16-bit float itself here.
        return pointwise(call, lambda a, b: truncate(a / b), left, right)
    return pointwise(call, lambda a, b: a / b, left, right)


def truncate(x: Array) -> Array:
    """Round towards zero."""
    return (x < 0).where(x.apply("ceil"), x.apply("floor")) if x.is_float else x


def modulo(a: Array, b: Array) -> Array:
    """Remainder with the sign of the divisor, as Python's ``%``; NaN for a float divided by zero."""
    rest = a.apply("remainder", b)
    return _opposite(rest, b).where(rest + b, rest)


def _opposite(rest: Array, divisor: Array) -> Array:
    """Where a truncated division left a rest whose sign is not the divisor's."""
    return rest.differs(0) & ((rest < 0) ^ (divisor < 0))


def floor_quotient(a: Array, b: Array) -> Array:
    """Quotient rounded down, by the steps of PyTorch's ``div_floor_floating``: a / 0 is inf or NaN for floats.

    An integer divided by 0, an error on the CPU, gives what the device gives.
    """
    rest = a.apply("remainder", b)
    if not a.is_float:
        quotient = a / b
        return _opposite(rest, b).where(quotient - 1, quotient)
    quotient = (a - rest) / b
    quotient = _opposite(rest, b).where(quotient - 1, quotient)
    floor = quotient.apply("floor")
    floor = (quotient - floor > _HALF).where(floor + 1, floor)
    signed_zero = (a / b) * 0
    return b.equals(0).where(a / b, quotient.equals(0).where(signed_zero, floor))


lowers("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")(
    lambda call, left, right: pointwise(call, modulo, left, right, wide=True)
)
lowers("aten.fmod.Tensor", "aten.fmod.Scalar", "prims.fmod.default")(
    lambda call, left, right: pointwise(call, lambda a, b: a.apply("remainder", b), left, right, wide=True)
)
lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")(
    lambda call, left, right: pointwise(call, floor_quotient, left, right, wide=True)
)
