"""Tensors made from nothing: filled ones, ramps, uninitialised ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.array import constant, is_lifted
from neuron_backend.lowering.dtypes import available
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import conform, iota

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array, Number, Operand
    from neuron_backend.lowering.registry import Call


@lowers("aten.full.default", "aten.full_like.default", "prims.full.default", "prims.full_like.default")
def _full(call: Call, _size_or_like: Any, value: Operand, *_rest: Any, **_options: Any) -> Array:
    return conform(value, call.out.dtype, call.out.shape)


@lowers("aten.new_full.default")
def _new_full(call: Call, _like: Array, _size: Any, value: Operand, **_options: Any) -> Array:
    return conform(value, call.out.dtype, call.out.shape)


@lowers("aten.scalar_tensor.default")
def _scalar_tensor(call: Call, value: Number, **_options: Any) -> Array:
    return constant(value, call.out.dtype)


@lowers(
    "aten._efficientzerotensor.default",
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "prims.empty_strided.default",
)
def _zeros(call: Call, *_arguments: Any, **_options: Any) -> Array:
    """Memory that PyTorch leaves uninitialised is zero here: a program has no uninitialised values."""
    return constant(0, call.out.dtype, call.out.shape)


@lowers(
    "aten.ones.default",
    "aten.ones_like.default",
    "aten.new_ones.default",
)
def _ones(call: Call, *_arguments: Any, **_options: Any) -> Array:
    return constant(1, call.out.dtype, call.out.shape)


def _ramp(call: Call, start: Number, step: Number) -> Array:
    """Return start + index * step: integers wrap, floats are as PyTorch has them, rounded once from doubles."""
    out = call.out
    dtype = out.dtype
    if dtype.is_floating_point:
        dtype = torch.float32 if _exact_in_single(start, step, out.shape[0]) else available(torch.float64)
    ramp = iota(out.shape, 0, dtype)
    if step != 1:
        ramp = ramp * step
    if start != 0:
        ramp = ramp + start
    return ramp.to(out.dtype)


def _exact_in_single(start: Number, step: Number, count: int) -> bool:
    """Whether single precision holds every number on the way: an accelerator may have no other."""
    if is_lifted(start) or is_lifted(step):
        return False
    unit = max(float(start).as_integer_ratio()[1], float(step).as_integer_ratio()[1])
    return bool(max(abs(start), abs(step * count), abs(start + step * count)) * unit <= 1 << 24)


@lowers("aten.arange.start_step")
def _arange(call: Call, start: Number, _end: Number, step: Number = 1, **_options: Any) -> Array:
    return _ramp(call, start, step)


@lowers("prims.iota.default")
def _iota(call: Call, _length: int, *, start: int, step: int, **_options: Any) -> Array:
    return _ramp(call, start, step)


@lowers("aten.eye.default", "aten.eye.m")
def _eye(call: Call, *_sizes: int, **_options: Any) -> Array:
    rows, columns = (iota(call.out.shape, axis) for axis in (0, 1))
    return rows.equals(columns).to(call.out.dtype)
