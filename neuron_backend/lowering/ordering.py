"""Sorting and what is made of it.

NaN is greater than every number, -0.0 equals 0.0, equal elements keep their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import Array, constant
from neuron_backend.lowering.errors import Invalid, Refused
from neuron_backend.lowering.extremes import extreme
from neuron_backend.lowering.promotion import common_dtype
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.regions import sort
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from neuron_backend.lowering.array import Operand
    from neuron_backend.lowering.registry import Call


def _ascending(left: Array, right: Array) -> Array:
    before = left < right
    return before | (right.is_nan() & ~left.is_nan()) if left.is_float else before


def _sorted(x: Array, dim: int, *, descending: bool) -> tuple[Array, Array]:
    if not x.rank:
        return x, constant(0, torch.int64)
    axis = dim % x.rank
    before = (lambda left, right: _ascending(right, left)) if descending else _ascending
    values, places = sort([x, iota(x.shape, axis)], axis, before)
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


def _count_before(boundaries: Array, values: Array, *, right: bool) -> Array:
    """Count the sorted ``boundaries`` before each of ``values``, along the last dimension of both, by comparing all."""
    shape = (*values.shape, boundaries.shape[-1])
    lead = range(boundaries.rank - 1)
    walls = boundaries.spread(shape, [*lead, values.rank])
    needles = values.spread(shape, range(values.rank))
    before = ~_ascending(needles, walls) if right else _ascending(walls, needles)
    return total(before.to(torch.int64), [values.rank])


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def _search_sorted(
    call: Call,
    boundaries: Array,
    values: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    del out_int32
    if sorter is not None:
        raise Refused("searchsorted with a sorter is not supported")
    common = common_dtype(boundaries, values)
    needles = values if isinstance(values, Array) else constant(values, common)
    found = _count_before(boundaries.to(common), needles.to(common), right=right or side == "right")
    return found.to(call.out.dtype)


@lowers("aten.bucketize.Tensor")
def _bucketize(call: Call, x: Array, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    if boundaries.rank != 1:
        raise Invalid("its boundaries are no vector")
    return _search_sorted(call, boundaries, x, out_int32=out_int32, right=right)


@lowers("aten.median.dim")
def _median(call: Call, x: Array, dim: int, _keepdim: bool = False) -> tuple[Array, Array]:
    """Return the lower of two middles; NaN, if there is one: the last of a sorted row shows it."""
    if not x.rank:
        return x, constant(0, torch.int64)
    axis = dim % x.rank
    length = x.shape[axis]
    values, places = _sorted(x, dim, descending=False)

    def pick(array: Array, position: int) -> Array:
        return array.slice(axis, position, position + 1).reshape(call.out.shape)

    middle = [pick(each, (length - 1) // 2) for each in (values, places)]
    if x.is_float:
        _, first_nan = extreme(x, iota(x.shape, axis), [axis], largest=True)
        poisoned = pick(values, length - 1).is_nan()
        worst = [pick(values, length - 1), first_nan.reshape(call.out.shape)]
        middle = [poisoned.where(bad, good) for bad, good in zip(worst, middle, strict=True)]
    return middle[0], middle[1]


@lowers("aten.median.default")
def _median_of_all(call: Call, x: Array) -> Array:
    return _median(call, x.reshape((x.size,)), 0)[0]


@lowers("aten.kthvalue.default")
def _kth_value(call: Call, x: Array, k: int, dim: int = -1, _keepdim: bool = False) -> tuple[Array, Array]:
    return _pick(call, x, dim, k - 1)
