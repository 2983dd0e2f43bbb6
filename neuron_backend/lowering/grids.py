"""Sampling at the places of a grid: grid_sample in two and three dimensions, and its gradients.

Along each dimension a place reads a few elements, its taps, with weights; the result is the sum over their products.
Formulas and corner cases are those of ATen/native/GridSamplerUtils.h.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.rewriting import rewrites

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# torch's numbers for the modes.
_NEAREST, _BICUBIC = 1, 2
_BORDER, _REFLECTION = 1, 2

_A = -0.75  # of the cubic convolution


@dataclass(frozen=True)
class _Tap:
    """An element read along one dimension: its index, its weight, and how the weight grows with the grid's value."""

    index: torch.Tensor
    weight: torch.Tensor
    slope: torch.Tensor


@dataclass(frozen=True)
class _Sampling:
    """How a grid is read: torch's interpolation and padding modes, whether -1 and 1 are centres of corner elements."""

    interpolation: int
    padding: int
    align_corners: bool

    def taps(self, grid: torch.Tensor, size: int) -> list[_Tap]:
        """Return the taps along a dimension of ``size`` for a grid's coordinates, which run from -1 to 1."""
        scale = (size - 1) / 2 if self.align_corners else size / 2
        place = (grid + 1) * scale - (0 if self.align_corners else 0.5)
        if self.interpolation == _BICUBIC:
            return self._cubic(place, size, scale)
        place, growth = self._padded(place, size)
        growth = growth * scale
        if self.interpolation == _NEAREST:
            return [_Tap(place.round(), torch.ones_like(place), torch.zeros_like(place))]
        low = place.floor()
        share = place - low
        return [_Tap(low, 1 - share, -growth), _Tap(low + 1, share, growth)]

    def _cubic(self, place: torch.Tensor, size: int, scale: float) -> list[_Tap]:
        low = place.floor()
        share = place - low
        found = []
        for step in (-1, 0, 1, 2):
            weight, slope = _cubic_weight(share, step)
            found.append(_Tap(self._padded(low + step, size)[0], weight, slope * scale))
        return found

    def _padded(self, place: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Bring places outside to where padding takes them; the second result is the derivative of that."""
        growth = torch.ones_like(place)
        if self.padding == _REFLECTION:
            place, growth = _reflected(place, *((0, size - 1) if self.align_corners else (-0.5, size - 0.5)))
        if self.padding in {_BORDER, _REFLECTION}:
            growth = torch.where((place <= 0) | (place >= size - 1), 0, growth)
            place = place.clamp(0, size - 1)
        return place, growth


def _reflected(place: torch.Tensor, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    if low == high:
        return torch.zeros_like(place), torch.zeros_like(place)
    span = high - low
    off = place - low
    distance = off.abs()
    rest = distance.fmod(span)
    even = (distance / span).floor().remainder(2) == 0
    direction = torch.where(off < 0, -1.0, 1.0).to(place.dtype)
    return torch.where(even, rest, span - rest) + low, torch.where(even, direction, -direction)


def _cubic_weight(share: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight of the element ``step`` from the floor, and its derivative by ``share``."""
    x = (share - step).abs()
    if step in {0, 1}:
        weight = ((_A + 2) * x - (_A + 3)) * x * x + 1
        slope = (3 * (_A + 2) * x - 2 * (_A + 3)) * x
    else:
        weight = ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
        slope = (3 * _A * x - 10 * _A) * x + 8 * _A
    return weight, slope if step <= 0 else -slope


@dataclass(frozen=True)
class _Read:
    """One product of taps: which element of the flattened space, whether it is there, and its taps."""

    element: torch.Tensor
    inside: torch.Tensor
    taps: Sequence[_Tap]

    def weight(self) -> torch.Tensor:
        result = math.prod((tap.weight for tap in self.taps[1:]), start=self.taps[0].weight)
        return torch.where(self.inside, result, 0)

    def slope(self, axis: int) -> torch.Tensor:
        """Return the derivative of the weight by the grid's value along spatial dimension ``axis``."""
        factors = [tap.slope if each == axis else tap.weight for each, tap in enumerate(self.taps)]
        return torch.where(self.inside, math.prod(factors[1:], start=factors[0]), 0)


def _reads(grid: torch.Tensor, space: Sequence[int], sampling: _Sampling) -> Iterator[_Read]:
    """Go through the products of taps; ``grid`` is [N, places, dimensions], its last entry the first dimension's."""
    last = len(space) - 1
    along = [sampling.taps(grid[..., last - axis], size) for axis, size in enumerate(space)]
    for taps in itertools.product(*along):
        element = torch.zeros_like(taps[0].index, dtype=torch.int64)
        inside = torch.ones_like(taps[0].index, dtype=torch.bool)
        for tap, size in zip(taps, space, strict=True):
            inside = inside & (tap.index >= 0) & (tap.index < size)
            element = element * size + tap.index.clamp(0, size - 1).to(torch.int64)
        yield _Read(element, inside, taps)


def _flat(value: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, C, elements] and [N, places, dimensions], in float32 where they are 16-bit floats."""
    wide = torch.float32 if value.dtype in {torch.float16, torch.bfloat16} else value.dtype
    places = grid.reshape(grid.shape[0], math.prod(grid.shape[1:-1]), grid.shape[-1])
    return value.to(wide).flatten(2), places.to(wide)


def _at(flat: torch.Tensor, read: _Read) -> torch.Tensor:
    shape = (*flat.shape[:2], read.element.shape[1])
    return flat.gather(2, read.element.unsqueeze(1).expand(shape))


@rewrites("aten.grid_sampler_3d.default")
def _sample(
    value: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align_corners: bool
) -> torch.Tensor:
    flat, places = _flat(value, grid)
    reads = _reads(places, value.shape[2:], _Sampling(interpolation, padding, align_corners))
    terms = [_at(flat, read) * read.weight().unsqueeze(1) for read in reads]
    summed = sum(terms[1:], start=terms[0])
    return summed.reshape(*value.shape[:2], *grid.shape[1:-1]).to(value.dtype)


@rewrites("aten.grid_sampler_2d_backward.default", "aten.grid_sampler_3d_backward.default")
def _sample_backward(  # noqa: PLR0917  PyTorch's own signature
    gradient: torch.Tensor,
    value: torch.Tensor,
    grid: torch.Tensor,
    interpolation: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    flat, places = _flat(value, grid)
    wide = gradient.to(flat.dtype).flatten(2)
    by_value, by_grid = torch.zeros_like(flat), [torch.zeros_like(places[..., 0]) for _ in value.shape[2:]]
    for read in _reads(places, value.shape[2:], _Sampling(interpolation, padding, align_corners)):
        if output_mask[0]:
            index = read.element.unsqueeze(1).expand(wide.shape)
            by_value = by_value.scatter_add(2, index, wide * read.weight().unsqueeze(1))
        if output_mask[1]:
            told = (_at(flat, read) * wide).sum(1)
            by_grid = [total + told * read.slope(axis) for axis, total in enumerate(by_grid)]
    return (
        by_value.reshape(value.shape).to(value.dtype) if output_mask[0] else None,
        torch.stack(by_grid[::-1], -1).reshape(grid.shape).to(grid.dtype) if output_mask[1] else None,
    )
