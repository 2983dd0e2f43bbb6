"""Discrete Fourier transforms, by StableHLO's own operation, which transforms up to three trailing dimensions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from jaxlib.mlir.dialects import stablehlo as hlo

from neuron_backend.lowering.array import Array
from neuron_backend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxlib.mlir import ir

    from neuron_backend.lowering.registry import Call

_MOST_DIMENSIONS = 3

# PyTorch's fft_norm_mode: what a transform over n elements is multiplied by.
_UNCHANGED, _BY_ROOT, _BY_COUNT = 0, 1, 2


def _transform(x: Array, kind: str, lengths: Sequence[int]) -> ir.Value[Any]:
    """Transform the last dimensions."""
    return hlo.fft(x.value, hlo.FftTypeAttr.get(kind), list(lengths))


def _last(x: Array, axes: Sequence[int]) -> tuple[Array, list[int]]:
    """Move ``axes`` to the end; return also the order that moves them back."""
    order = [axis for axis in range(x.rank) if axis not in axes] + list(axes)
    return x.transpose(order), [order.index(axis) for axis in range(x.rank)]


def _complex(x: Array, axes: Sequence[int], *, forward: bool) -> Array:
    """Transform complex numbers over ``axes``, not normalised in either direction."""
    for start in range(0, len(axes), _MOST_DIMENSIONS):
        group = axes[start : start + _MOST_DIMENSIONS]
        moved, back = _last(x, group)
        lengths = [x.shape[axis] for axis in group]
        moved = moved.like(_transform(moved, "FFT" if forward else "IFFT", lengths))
        x = moved.transpose(back)
    return x if forward else x * math.prod(x.shape[axis] for axis in axes)


def _normalised(x: Array, mode: int, count: int) -> Array:
    if mode == _UNCHANGED:
        return x
    return x / (math.sqrt(count) if mode == _BY_ROOT else count)


def _axes(x: Array, dims: Sequence[int]) -> list[int]:
    return [dim % x.rank for dim in dims] if x.rank else []


@lowers("aten._fft_c2c.default")
def _complex_to_complex(_call: Call, x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    axes = _axes(x, dim)
    return _normalised(_complex(x, axes, forward=forward), normalization, math.prod(x.shape[axis] for axis in axes))


@lowers("aten._fft_r2c.default")
def _real_to_complex(call: Call, x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """Halve the last of ``dim`` and transform the others as complex numbers."""
    axes = _axes(x, dim)
    count = math.prod(x.shape[axis] for axis in axes)
    wide = x.to(call.out.dtype.to_real())
    if not onesided:
        result = _complex(wide.to(call.out.dtype), axes, forward=True)
    else:
        moved, back = _last(wide, axes[-1:])
        length = moved.shape[-1]
        half = Array(_transform(moved, "RFFT", [length]), call.out.dtype, (*moved.shape[:-1], length // 2 + 1))
        result = half.transpose(back)
        result = _complex(result, axes[:-1], forward=True)
    return _normalised(result, normalization, count)


@lowers("aten._fft_c2r.default")
def _complex_to_real(call: Call, x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """Take the last of ``dim`` for the half of a Hermitian row of ``last_dim_size``."""
    axes = _axes(x, dim)
    moved, back = _last(_complex(x, axes[:-1], forward=False), axes[-1:])
    kind, axis = moved.dtype.to_real(), moved.rank - 1
    half = moved.slice(axis, 0, last_dim_size // 2 + 1)
    real = (
        Array(_transform(half, "IRFFT", [last_dim_size]), kind, (*half.shape[:-1], last_dim_size)).transpose(back)
        * last_dim_size
    )
    return _normalised(real, normalization, math.prod(call.out.shape[axis] for axis in axes))
