"""Element-wise operators of one operand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.arithmetic import negative_sign
from neuron_backend.lowering.complexes import modulus
from neuron_backend.lowering.division import truncate
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.promotion import pointwise
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import conform

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


def _float(name: str) -> Callable[..., Array]:
    """Lower a float function: integers are converted first, 16-bit floats computed in float32."""
    return lambda call, x: pointwise(call, lambda a: a.apply(name), x, wide=True)


for _name, _operation in {
    "acos": "chlo.acos",
    "acosh": "chlo.acosh",
    "asin": "chlo.asin",
    "asinh": "chlo.asinh",
    "atan": "chlo.atan",
    "atanh": "chlo.atanh",
    "cos": "cosine",
    "cosh": "chlo.cosh",
    "erf": "chlo.erf",
    "erfc": "chlo.erfc",
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "lgamma": "chlo.lgamma",
    "log": "log",
    "log1p": "log_plus_one",
    "rsqrt": "rsqrt",
    "sin": "sine",
    "sinh": "chlo.sinh",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
}.items():
    lowers(f"aten.{_name}.default", f"prims.{_name}.default")(_float(_operation))
lowers("aten.erfinv.default", "prims.erf_inv.default")(_float("chlo.erf_inv"))
lowers("aten.sigmoid.default")(_float("logistic"))


def _computed(function: Callable[[Array], Array]) -> Callable[..., Array]:
    return lambda call, x: pointwise(call, function, x, wide=True)


lowers("aten.exp2.default", "prims.exp2.default")(_computed(lambda x: x.full(2).apply("power", x)))
lowers("aten.log2.default", "prims.log2.default")(_computed(lambda x: x.apply("log") / math.log(2)))
lowers("aten.log10.default", "prims.log10.default")(_computed(lambda x: x.apply("log") / math.log(10)))
lowers("aten.reciprocal.default", "prims.reciprocal.default")(_computed(lambda x: 1 / x))


def _rounding(name: str) -> Callable[..., Array]:
    return lambda _call, x: x.apply(name) if x.is_float else x


lowers("aten.floor.default", "prims.floor.default")(_rounding("floor"))
lowers("aten.ceil.default", "prims.ceil.default")(_rounding("ceil"))
lowers("aten.round.default", "prims.round.default")(_rounding("round_nearest_even"))
lowers("aten.trunc.default", "prims.trunc.default")(lambda _call, x: truncate(x))


@lowers("aten.digamma.default", "prims.digamma.default")
def _digamma(call: Call, x: Array) -> Array:
    """CHLO's has NaN at the zeros, where PyTorch has the infinity of the opposite sign."""
    return pointwise(call, lambda a: a.equals(0).where(-(1 / a), a.apply("chlo.digamma")), x, wide=True)


@lowers("aten.abs.default", "prims.abs.default")
def _absolute(_call: Call, x: Array) -> Array:
    if x.is_complex:
        return modulus(x)
    return x if x.dtype in {torch.bool, torch.uint8} else x.apply("abs")


@lowers("aten.neg.default", "prims.neg.default")
def _negative(_call: Call, x: Array) -> Array:
    return -x


@lowers("aten.signbit.default", "prims.signbit.default")
def _sign_bit(_call: Call, x: Array) -> Array:
    return negative_sign(x)


@lowers("aten.bitwise_not.default", "prims.bitwise_not.default")
def _bitwise_not(_call: Call, x: Array) -> Array:
    return ~x


@lowers(
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
    "prims.clone.default",
)
def _identity(_call: Call, x: Array, **_layout: object) -> Array:
    return x


@lowers("aten._to_copy.default", "prims.convert_element_type.default")
def _convert(call: Call, x: Array, *_dtype: object, **_layout: object) -> Array:
    return x.to(call.out.dtype)


@lowers("aten.copy.default")
def _copy(call: Call, _x: Array, source: Array, _non_blocking: bool = False) -> Array:
    return conform(source, call.out.dtype, call.out.shape)


@lowers("aten.round.decimals")
def _round_decimals(call: Call, x: Array, *, decimals: int) -> Array:
    """Scale by a power of ten, round, scale back: the steps of PyTorch's kernel."""
    if not x.is_float:
        raise Refused("rounding integers to decimals is not supported")
    power = 10.0 ** abs(decimals)

    def rounded(a: Array) -> Array:
        if not decimals:
            return a.apply("round_nearest_even")
        if decimals < 0:
            return (a / power).apply("round_nearest_even") * power
        return (a * power).apply("round_nearest_even") / power

    return pointwise(call, rounded, x, wide=True)
