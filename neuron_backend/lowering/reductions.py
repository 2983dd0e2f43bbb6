"""Sums, products, extremes, means and variances over dimensions. 16-bit floats are accumulated in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.dtypes import accumulator, highest, lowest
from neuron_backend.lowering.errors import Invalid
from neuron_backend.lowering.regions import reduce
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Array, Number
    from neuron_backend.lowering.registry import Call

    Dims = int | Sequence[int] | None


def axes_of(x: Array, dim: Dims) -> list[int]:
    """Dimensions that ``dim`` names: all of them for None or nothing, none for a rank-0 tensor."""
    named = [dim] if isinstance(dim, int) else dim
    if not named or not x.rank:
        return list(range(x.rank))
    return sorted({axis % x.rank for axis in named})


def fold(x: Array, axes: Sequence[int], name: str, initial: Number) -> Array:
    """Reduce with one element-wise operation and its identity."""
    if not axes:
        return x
    return reduce([x], [initial], axes, lambda a, b: [a.apply(name, b)])[0]


def total(x: Array, axes: Sequence[int]) -> Array:
    """Sum over ``axes``, in the dtype of ``x``."""
    return fold(x, axes, "or_" if x.dtype == torch.bool else "add", 0)


@lowers("aten.sum.default", "aten.sum.dim_IntList", "prims.sum.default")
def _sum(call: Call, x: Array, dim: Dims = None, *_keepdim: Any, **_options: Any) -> Array:
    wide = x.to(call.out.dtype).to(accumulator(call.out.dtype))
    return total(wide, axes_of(x, dim)).to(call.out.dtype).reshape(call.out.shape)


@lowers("aten.mean.default", "aten.mean.dim")
def _mean(call: Call, x: Array, dim: Dims = None, *_keepdim: Any, **_options: Any) -> Array:
    axes = axes_of(x, dim)
    summed = total(x.to(accumulator(call.out.dtype)), axes)
    return (summed / _count(x, axes)).to(call.out.dtype).reshape(call.out.shape)


def _count(x: Array, axes: Sequence[int]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _moments(x: Array, axes: Sequence[int], correction: float) -> tuple[Array, Array]:
    """Variance and mean by two passes; dividing by zero or less gives inf or NaN, as PyTorch does."""
    if not (x.is_float or x.is_complex):
        raise Invalid("integers have no variance of their own type")
    wide = x.to(accumulator(x.dtype))
    count = _count(x, axes)
    average = total(wide, axes) / count
    kept = [axis for axis in range(x.rank) if axis not in axes]
    centred = wide - average.spread(x.shape, kept)
    squares = centred.real * centred.real + centred.imag * centred.imag if x.is_complex else centred * centred
    return total(squares, axes) / max(count - correction, 0), average


@lowers("aten.var.correction")
def _variance(
    call: Call, x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Array:
    del keepdim
    result, _ = _moments(x, axes_of(x, dim), 1 if correction is None else correction)
    return result.to(call.out.dtype).reshape(call.out.shape)


@lowers("prims.var.default")
def _prims_variance(call: Call, x: Array, dims: Dims, correction: float = 1, **_options: Any) -> Array:
    return _moments(x, axes_of(x, dims), correction)[0].to(call.out.dtype).reshape(call.out.shape)


@lowers("aten.var_mean.correction")
def _variance_and_mean(
    call: Call, x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    del keepdim
    variance, average = _moments(x, axes_of(x, dim), 1 if correction is None else correction)
    shape = call.out.shape
    return variance.to(call.out.dtype).reshape(shape), average.to(x.dtype).reshape(shape)


@lowers("aten.prod.default", "aten.prod.dim_int", "prims.prod.default")
def _product(call: Call, x: Array, dim: Dims = None, *_keepdim: Any, **_options: Any) -> Array:
    wide = x.to(call.out.dtype).to(accumulator(call.out.dtype))
    name = "and_" if wide.dtype == torch.bool else "multiply"
    return fold(wide, axes_of(x, dim), name, 1).to(call.out.dtype).reshape(call.out.shape)


def _extreme(name: str, identity: Callable[[torch.dtype], Number]) -> Callable[..., Array]:
    """NaN wins, as in PyTorch: StableHLO's maximum and minimum pass it on."""

    def lowering(call: Call, x: Array, dim: Dims = None, *_keepdim: Any, **_options: Any) -> Array:
        if not x.size:  # torch's shape inference lets max() of nothing pass, and no other
            raise Invalid("there is no extreme of nothing")
        return fold(x, axes_of(x, dim), name, identity(x.dtype)).reshape(call.out.shape)

    return lowering


lowers("aten.amax.default", "aten.max.default", "prims.amax.default")(_extreme("maximum", lowest))
lowers("aten.amin.default", "aten.min.default", "prims.amin.default")(_extreme("minimum", highest))


def _truth(name: str, initial: Number) -> Callable[..., Array]:
    def lowering(call: Call, x: Array, dim: Dims = None, *_keepdim: Any) -> Array:
        result = fold(x.to(torch.bool), axes_of(x, dim), name, initial)
        return result.to(call.out.dtype).reshape(call.out.shape)

    return lowering


lowers("aten.any.default", "aten.any.dim", "aten.any.dims")(_truth("or_", 0))
lowers("aten.all.default", "aten.all.dim", "aten.all.dims")(_truth("and_", 1))
