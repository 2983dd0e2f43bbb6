"""Values together with their places: the comparison that argmax, max pooling and running maxima share.

NaN counts as the greatest of all for maxima and the least for minima, as in PyTorch. Among equals the first wins;
among several NaN the first, or in pooling the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.array import constant
from neuron_backend.lowering.dtypes import highest, lowest
from neuron_backend.lowering.errors import Invalid
from neuron_backend.lowering.reductions import axes_of
from neuron_backend.lowering.regions import reduce
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call

    Pairing = Callable[[Array, Array, Array, Array], tuple[Array, Array]]

LAST_PLACE = torch.iinfo(torch.int64).max


def better_of(*, largest: bool, last_nan: bool = False) -> Pairing:
    """Return the choice between two (value, place) pairs, as a function of all four.

    It is associative and commutative for distinct places.
    """

    def choose(left: Array, left_place: Array, right: Array, right_place: Array) -> tuple[Array, Array]:
        wins = left > right if largest else left < right
        equal, earlier = left.equals(right), left_place < right_place
        keep = wins | (equal & earlier)
        if left.is_float:
            nan, other_nan = left.is_nan(), right.is_nan()
            among_nan = left_place > right_place if last_nan else earlier
            keep = (keep & ~other_nan) | (nan & (~other_nan | among_nan))
        return keep.where(left, right), keep.where(left_place, right_place)

    return choose


def least(x: Array, *, largest: bool) -> float:
    """Value that never wins."""
    return lowest(x.dtype) if largest else highest(x.dtype)


def extreme(
    x: Array, places: Array, axes: Sequence[int], *, largest: bool, last_nan: bool = False
) -> tuple[Array, Array]:
    """Reduce (value, place) pairs over ``axes``."""
    initial = [least(x, largest=largest), LAST_PLACE]
    values, found = reduce([x, places], initial, axes, better_of(largest=largest, last_nan=last_nan))
    return values, found


def _with_places(x: Array, dim: int, *, largest: bool) -> tuple[Array, Array]:
    if not x.rank:
        return x, constant(0, torch.int64)
    axis = dim % x.rank
    if not x.shape[axis]:
        raise Invalid("there is no extreme of nothing")
    return extreme(x, iota(x.shape, axis), [axis], largest=largest)


def _argument(*, largest: bool) -> Callable[..., Array]:
    def lowering(call: Call, x: Array, dim: int | None = None, _keepdim: bool = False) -> Array:
        vector = x.reshape((x.size,)) if dim is None else x
        return _with_places(vector, dim or 0, largest=largest)[1].reshape(call.out.shape)

    return lowering


lowers("aten.argmax.default")(_argument(largest=True))
lowers("aten.argmin.default")(_argument(largest=False))


def _extreme_and_argument(*, largest: bool) -> Callable[..., tuple[Array, Array]]:
    def lowering(call: Call, x: Array, dim: int, _keepdim: bool = False) -> tuple[Array, Array]:
        values, places = _with_places(x, dim, largest=largest)
        return values.reshape(call.out.shape), places.reshape(call.out.shape)

    return lowering


lowers("aten.max.dim")(_extreme_and_argument(largest=True))
lowers("aten.min.dim")(_extreme_and_argument(largest=False))


@lowers("aten.aminmax.default")
def _both_extremes(call: Call, x: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    del keepdim
    axes = axes_of(x, dim)
    low, high = (
        reduce([x], [least(x, largest=largest)], axes, lambda a, b, name=name: [a.apply(name, b)])[0] if axes else x
        for name, largest in (("minimum", False), ("maximum", True))
    )
    return low.reshape(call.out.shape), high.reshape(call.out.shape)
