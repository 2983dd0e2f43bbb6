"""Sorting and what is made of it. NaN is greater than every number; -0.0 equals 0.0; equal elements keep their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.regions import sort
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.builder import Call


def _ascending(left: Array, right: Array) -> Array:
    before = left < right
    return before | (right.is_nan() & ~left.is_nan()) if left.is_float else before


def _sorted(x: Array, dim: int, *, descending: bool) -> tuple[Array, Array]:
    if not x.rank:
        return x, x.builder.constant(0, torch.int64)
    axis = dim % x.rank
    before = (lambda left, right: _ascending(right, left)) if descending else _ascending
    values, places = sort([x, x.builder.iota(x.shape, axis)], axis, before)
    return values, places


@lowers("aten.sort.default")
def _sort(_call: Call, x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    return _sorted(x, dim, descending=descending)


@lowers("aten.sort.stable")
def _stable_sort(
    _call: Call, x: Array, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    del stable
    return _sorted(x, dim, descending=descending)


@lowers("aten.topk.default")
def _top(
    _call: Call, x: Array, k: int, dim: int = -1, largest: bool = True, _sorted_results: bool = True
) -> tuple[Array, Array]:
    values, places = _sorted(x, dim, descending=largest)
    if not x.rank:
        return values, places
    axis = dim % x.rank
    return values.slice(axis, 0, k), places.slice(axis, 0, k)


def _pick(call: Call, x: Array, dim: int, position: int) -> tuple[Array, Array]:
    values, places = _sorted(x, dim, descending=False)
    if not x.rank:
        return values, places
    axis = dim % x.rank
    picked = (each.slice(axis, position, position + 1) for each in (values, places))
    value, place = (each.reshape(call.out.shape) for each in picked)
    return value, place


@lowers("aten.kthvalue.default")
def _kth_value(call: Call, x: Array, k: int, dim: int = -1, _keepdim: bool = False) -> tuple[Array, Array]:
    return _pick(call, x, dim, k - 1)
