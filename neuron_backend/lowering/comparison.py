"""Comparisons, logic and selection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.promotion import common_dtype, pointwise
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import conform

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_backend.lowering.array import Array, Operand
    from neuron_backend.lowering.registry import Call


def _comparison(direction: str) -> Callable[..., Array]:
    def compare(call: Call, left: Operand, right: Operand) -> Array:
        # A number is rounded to the common dtype here: 0.1 equals the nearest bfloat16, as in PyTorch.
        dtype = common_dtype(left, right)
        first, second = (conform(each, dtype, call.out.shape) for each in (left, right))
        return first.compare(direction, second)

    return compare


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowers(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", f"prims.{_name}.default")(_comparison(_name.upper()))


def _logical(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda call, *operands: pointwise(call, function, *operands, dtype=torch.bool)


lowers("aten.logical_and.default")(_logical(lambda a, b: a & b))
lowers("aten.logical_or.default")(_logical(lambda a, b: a | b))
lowers("aten.logical_xor.default")(_logical(lambda a, b: a ^ b))
lowers("aten.logical_not.default")(_logical(lambda a: ~a))


@lowers("aten.isnan.default")
def _is_nan(_call: Call, x: Array) -> Array:
    return x.is_nan()


@lowers("aten.isinf.default")
def _is_infinite(_call: Call, x: Array) -> Array:
    if x.is_complex:
        return _is_infinite(_call, x.real) | _is_infinite(_call, x.imag)
    if not x.is_float:
        return constant(0, torch.bool, x.shape)
    return x.apply("abs").equals(math.inf)


@lowers("prims.isfinite.default")
def _is_finite(_call: Call, x: Array) -> Array:
    if x.is_complex:
        return _is_finite(_call, x.real) & _is_finite(_call, x.imag)
    if not x.is_float:
        return constant(1, torch.bool, x.shape)
    return x.apply("abs") < math.inf


@lowers("aten.isposinf.default")
def _is_positive_infinity(_call: Call, x: Array) -> Array:
    return x.equals(math.inf) if x.is_float else constant(0, torch.bool, x.shape)


@lowers("aten.isneginf.default")
def _is_negative_infinity(_call: Call, x: Array) -> Array:
    return x.equals(-math.inf) if x.is_float else constant(0, torch.bool, x.shape)


@lowers("aten.where.self", "prims.where.default")
def _where(call: Call, condition: Array, chosen: Operand, otherwise: Operand) -> Array:
    out = call.out
    mask = conform(condition, torch.bool, out.shape)
    then, other = (conform(each, out.dtype, out.shape) for each in (chosen, otherwise))
    return mask.where(then, other)
