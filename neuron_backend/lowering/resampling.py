"""Gradients of interpolation. Along each dimension it is a matrix, so the gradient is a product with it.

The matrix has one row per output element and one column per input element; it is computed, not held. The forward
operators are decomposed by PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.contraction import dot
from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call

    Weights = Callable[[int, int, float | None, torch.dtype], Array]


def _nearest(shift: float) -> Weights:
    """Take the element at floor((i + shift) * scale)."""

    def weights(out: int, size: int, factor: float | None, dtype: torch.dtype) -> Array:
        place = (iota((out, size), 0, dtype) + shift) * _scale(out, size, factor)
        source = place.apply("floor").to(torch.int64).apply("minimum", size - 1)
        return iota((out, size), 1).equals(source).to(dtype)

    return weights


def _linear(*, align_corners: bool) -> Weights:
    """Mix the two elements around each place, by their distance."""

    def weights(out: int, size: int, factor: float | None, dtype: torch.dtype) -> Array:
        place = iota((out, size), 0, dtype)
        if align_corners:
            source = place * ((size - 1) / (out - 1) if out > 1 else 0.0)
        else:
            source = ((place + 0.5) * _scale(out, size, factor) - 0.5).apply("maximum", 0)
        low = source.apply("floor").apply("minimum", size - 1)
        high = (low + 1).apply("minimum", size - 1)
        share = source - low
        element = iota((out, size), 1, dtype)
        return element.equals(low).where(1 - share, 0) + element.equals(high).where(share, 0)

    return weights


def _scale(out: int, size: int, factor: float | None) -> float:
    return 1 / factor if factor is not None and factor > 0 else size / out


def _backward(
    call: Call, gradient: Array, input_size: Sequence[int], factors: Sequence[float | None], weights: Weights
) -> Array:
    dtype = accumulator(gradient.dtype)
    result = gradient.to(dtype)
    for axis, factor in enumerate(factors, 2):
        matrix = weights(gradient.shape[axis], input_size[axis], factor, dtype)
        product = dot(result, matrix, contract=(axis, 0))
        last = product.rank - 1
        result = product.transpose([*range(axis), last, *range(axis, last)])
    return result.to(call.out.dtype)


def _nearest_backward(shift: float) -> Callable[..., Array]:
    def lowering(
        call: Call, gradient: Array, _output_size: Sequence[int], input_size: Sequence[int], *factors: float | None
    ) -> Array:
        spatial = [*factors, *[None] * (gradient.rank - 2 - len(factors))]
        return _backward(call, gradient, input_size, spatial, _nearest(shift))

    return lowering


for _dimensions in (1, 2, 3):
    lowers(f"aten.upsample_nearest{_dimensions}d_backward.default")(_nearest_backward(0))
    lowers(f"aten._upsample_nearest_exact{_dimensions}d_backward.default")(_nearest_backward(0.5))


@lowers(
    "aten.upsample_linear1d_backward.default",
    "aten.upsample_bilinear2d_backward.default",
    "aten.upsample_trilinear3d_backward.default",
)
def _linear_backward(
    call: Call,
    gradient: Array,
    _output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    *factors: float | None,
) -> Array:
    spatial = [*factors, *[None] * (gradient.rank - 2 - len(factors))]
    return _backward(call, gradient, input_size, spatial, _linear(align_corners=align_corners))
