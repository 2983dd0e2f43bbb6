"""Running sums, products and extremes along one dimension, by doubling: log2(n) shifted additions, mostly no loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.extremes import LAST_PLACE, better_of, least
from neuron_backend.lowering.loops import repeat
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Array, Number
    from neuron_backend.lowering.registry import Call


def scan(
    arrays: Sequence[Array], initial: Sequence[Number], dim: int, combine: Callable[..., Sequence[Array]]
) -> list[Array]:
    """Combine each element with all before it; ``combine`` is associative, ``initial`` its left identity."""
    if not arrays[0].rank:
        return list(arrays)
    axis = dim % arrays[0].rank
    length = arrays[0].shape[axis]
    step, current = 1, list(arrays)
    while step < length:
        before = [_shifted(array, axis, step, number) for array, number in zip(current, initial, strict=True)]
        current = list(combine(*before, *current))
        step *= 2
    return current


def _shifted(array: Array, axis: int, step: int, filler: Number) -> Array:
    low, high = [0] * array.rank, [0] * array.rank
    low[axis], high[axis] = step, -step
    return array.pad(low, high, filler)


def _running(combine: Callable[[Array, Array], Array], initial: Number) -> Callable[..., Array]:
    def lowering(call: Call, x: Array, dim: int, **_dtype: Any) -> Array:
        wide = x.to(call.out.dtype).to(accumulator(call.out.dtype))
        return scan([wide], [initial], dim, lambda a, b: [combine(a, b)])[0].to(call.out.dtype)

    return lowering


def _log_add(a: Array, b: Array) -> Array:
    """log(exp(a) + exp(b)) without overflow; an infinite maximum is the result itself."""
    high = a.apply("maximum", b)
    finite = high.apply("abs") < math.inf
    spread = (a - high).apply("exponential") + (b - high).apply("exponential")
    return (finite | high.is_nan()).where(high + spread.apply("log"), high)


def running_sum(x: Array, dim: int) -> Array:
    """Sum each element and all before it along ``dim``."""
    return scan([x], [0], dim, lambda a, b: [a + b])[0]


lowers("aten.cumsum.default")(_running(lambda a, b: a + b, 0))
lowers("aten.cumprod.default")(_running(lambda a, b: a * b, 1))
_real_running_log_sum = _running(_log_add, -math.inf)


@lowers("aten.logcumsumexp.default", "aten._logcumsumexp.default")
def _running_log_sum(call: Call, x: Array, dim: int) -> Array:
    """Of complex numbers one after the other: only so does each logarithm have the branch that the CPU's has."""
    if not x.is_complex:
        return _real_running_log_sum(call, x, dim)
    if not x.rank:
        return x
    axis = dim % x.rank
    along = [other for other in range(x.rank) if other != axis]

    def body(step: Array, sums: Array, current: Array) -> list[Array]:
        here = iota(x.shape, axis, torch.int32).equals(step.broadcast(x.shape))
        current = _complex_log_add(total(here.where(x, 0), [axis]), current)
        return [here.where(current.spread(x.shape, along), sums), current]

    nothing = x.slice(axis, 0, 1).reshape([x.shape[other] for other in along]).real.full(-math.inf)
    return repeat(x.shape[axis], [x.full(0), nothing.joined(nothing.full(0))], body)[0]


def _complex_log_add(a: Array, b: Array) -> Array:
    """log(exp(a) + exp(b)): the one with the larger real part, and what the other adds to it."""
    larger = a.real >= b.real
    high, low = larger.where(a, b), larger.where(b, a)
    result = (low - high).apply("exponential").apply("log_plus_one") + high
    result = low.real.equals(-math.inf).where(high, result)
    return (a.is_nan() | b.is_nan()).where(high.real.full(math.nan).joined(high.real.full(math.nan)), result)


def _running_extreme(*, largest: bool) -> Callable[..., tuple[Array, Array]]:
    """Among equals the last place counts here, unlike in argmax: the choice is on negated places."""

    def lowering(_call: Call, x: Array, dim: int) -> tuple[Array, Array]:
        if not x.rank:
            return x, constant(0, torch.int64)
        places = -iota(x.shape, dim % x.rank)
        pair = scan([x, places], [least(x, largest=largest), LAST_PLACE], dim, better_of(largest=largest))
        return pair[0], -pair[1]

    return lowering


lowers("aten.cummax.default")(_running_extreme(largest=True))
lowers("aten.cummin.default")(_running_extreme(largest=False))
