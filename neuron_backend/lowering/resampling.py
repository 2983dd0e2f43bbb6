"""Interpolation as a product: along each dimension it is a matrix, and its gradient the product with the transpose.

The matrix has one row per output element and one column per input element; it is computed, not held. PyTorch decomposes
most forward operators into reads of single elements, less work where a row has few; those with antialias, whose rows
have many, are products here.
Formulas are those of ATen/native/UpSample.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.contraction import dot
from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.reductions import total
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import iota

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call

    Weights = Callable[[int, int, float | None, torch.dtype], Array]

_A = -0.75  # of the cubic convolution
_A_ANTIALIAS = -0.5
_CUBIC_REACH = 2


def _nearest(shift: float) -> Weights:
    """Take the element at floor((i + shift) * scale)."""

    def weights(out: int, size: int, factor: float | None, dtype: torch.dtype) -> Array:
        place = (iota((out, size), 0, dtype) + shift) * _scale(out, size, factor)
        source = place.apply("floor").to(torch.int64).apply("minimum", size - 1)
        return iota((out, size), 1).equals(source).to(dtype)

    return weights


def _source(out: int, size: int, factor: float | None, dtype: torch.dtype, *, align_corners: bool) -> Array:
    """Where each row's output element lies among the input elements, in the shape of the matrix."""
    place = iota((out, size), 0, dtype)
    if align_corners:
        return place * ((size - 1) / (out - 1) if out > 1 else 0.0)
    return (place + 0.5) * _scale(out, size, factor) - 0.5


def _linear(*, align_corners: bool) -> Weights:
    """Mix the two elements around each place, by their distance."""

    def weights(out: int, size: int, factor: float | None, dtype: torch.dtype) -> Array:
        source = _source(out, size, factor, dtype, align_corners=align_corners).apply("maximum", 0)
        low = source.apply("floor").apply("minimum", size - 1)
        high = (low + 1).apply("minimum", size - 1)
        share = source - low
        element = iota((out, size), 1, dtype)
        return element.equals(low).where(1 - share, 0) + element.equals(high).where(share, 0)

    return weights


def _cubic(*, align_corners: bool) -> Weights:
    """Mix the four elements around each place; those beyond an end are that end's."""

    def weights(out: int, size: int, factor: float | None, dtype: torch.dtype) -> Array:
        source = _source(out, size, factor, dtype, align_corners=align_corners)
        low = source.apply("floor")
        element = iota((out, size), 1, dtype)
        result = element.full(0)
        for step in (-1, 0, 1, 2):
            place = (low + step).apply("maximum", 0).apply("minimum", size - 1)
            share = _cubic_weight((source - (low + step)).apply("abs"), _A)
            result = result + element.equals(place).where(share, 0)
        return result

    return weights


def _cubic_weight(x: Array, a: float) -> Array:
    """Return the weight of an element at distance ``x``."""
    near = ((x * (a + 2)) - (a + 3)) * x * x + 1
    far = ((x * a - 5 * a) * x + 8 * a) * x - 4 * a
    return (x < 1).where(near, (x < _CUBIC_REACH).where(far, 0))


def _triangle_weight(x: Array) -> Array:
    return (1 - x).apply("maximum", 0)


def _antialiased(weight: Callable[[Array], Array], reach: float, *, align_corners: bool) -> Weights:
    """Mix all elements below a filter of half-width ``reach``, which widens with the scale; rows are normalised."""

    def weights(out: int, size: int, factor: float | None, dtype: torch.dtype) -> Array:
        corners = (size - 1) / (out - 1) if out > 1 else 0.0
        scale = corners if align_corners else _scale(out, size, factor)
        wide = max(scale, 1.0)
        centre = (iota((out, size), 0, dtype) + 0.5) * scale
        element = iota((out, size), 1, dtype)
        first = (centre - reach * wide + 0.5).apply("maximum", 0).apply("floor")
        end = (centre + reach * wide + 0.5).apply("floor").apply("minimum", size)
        inside = (first <= element) & (element < end)
        raw = inside.where(weight(((element - centre + 0.5) / wide).apply("abs")), 0)
        return raw / total(raw, [1]).spread(raw.shape, [0])

    return weights


def _scale(out: int, size: int, factor: float | None) -> float:
    return 1 / factor if factor is not None and factor > 0 else size / out


def _along(x: Array, axis: int, matrix: Array, *, contract: int) -> Array:
    """Replace dimension ``axis`` by its product with ``matrix``, summed over dimension ``contract`` of that."""
    product = dot(x, matrix, contract=(axis, contract))
    last = product.rank - 1
    return product.transpose([*range(axis), last, *range(axis, last)])


def _backward(
    call: Call, gradient: Array, input_size: Sequence[int], factors: Sequence[float | None], weights: Weights
) -> Array:
    dtype = accumulator(gradient.dtype)
    result = gradient.to(dtype)
    spatial = [*factors, *[None] * (gradient.rank - 2 - len(factors))]
    for axis, factor in enumerate(spatial, 2):
        result = _along(result, axis, weights(gradient.shape[axis], input_size[axis], factor, dtype), contract=0)
    return result.to(call.out.dtype)


def _nearest_backward(shift: float) -> Callable[..., Array]:
    def lowering(
        call: Call, gradient: Array, _output_size: Sequence[int], input_size: Sequence[int], *factors: float | None
    ) -> Array:
        return _backward(call, gradient, input_size, factors, _nearest(shift))

    return lowering


for _dimensions in (1, 2, 3):
    lowers(f"aten.upsample_nearest{_dimensions}d_backward.default")(_nearest_backward(0))
    lowers(f"aten._upsample_nearest_exact{_dimensions}d_backward.default")(_nearest_backward(0.5))


def _aligned_backward(family: Callable[..., Weights]) -> Callable[..., Array]:
    def lowering(
        call: Call,
        gradient: Array,
        _output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        *factors: float | None,
    ) -> Array:
        return _backward(call, gradient, input_size, factors, family(align_corners=align_corners))

    return lowering


def _aligned_forward(family: Callable[..., Weights]) -> Callable[..., Array]:
    def lowering(
        call: Call, x: Array, output_size: Sequence[int], align_corners: bool, *factors: float | None
    ) -> Array:
        weights, dtype = family(align_corners=align_corners), accumulator(x.dtype)
        result = x.to(dtype)
        spatial = [*factors, *[None] * (x.rank - 2 - len(factors))]
        for axis, (out, factor) in enumerate(zip(output_size, spatial, strict=True), 2):
            result = _along(result, axis, weights(out, x.shape[axis], factor, dtype), contract=1)
        return result.to(call.out.dtype)

    return lowering


def _bilinear_antialiased(*, align_corners: bool) -> Weights:
    return _antialiased(_triangle_weight, 1, align_corners=align_corners)


def _bicubic_antialiased(*, align_corners: bool) -> Weights:
    return _antialiased(lambda x: _cubic_weight(x, _A_ANTIALIAS), _CUBIC_REACH, align_corners=align_corners)


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    lowers(f"aten.{_name}_backward.default")(_aligned_backward(_linear))
lowers("aten.upsample_bicubic2d_backward.default")(_aligned_backward(_cubic))
for _name, _family in (("bilinear", _bilinear_antialiased), ("bicubic", _bicubic_antialiased)):
    lowers(f"aten._upsample_{_name}2d_aa.default")(_aligned_forward(_family))
    lowers(f"aten._upsample_{_name}2d_aa_backward.default")(_aligned_backward(_family))
