"""Counting into bins: histc and histogram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.rewriting import rewrites

if TYPE_CHECKING:
    from collections.abc import Sequence


def _range(x: torch.Tensor, low: float, high: float, margin: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ends of the bins: those of the data if none are given, ``margin`` to either side if they are one."""
    if low == high and x.numel():
        first, last = x.min(), x.max()
    else:
        first, last = (x.new_full((), end) for end in (low, high))
    same = first == last
    return torch.where(same, first - margin, first), torch.where(same, last + margin, last)


def _counted(place: torch.Tensor, inside: torch.Tensor, bins: int, weight: torch.Tensor) -> torch.Tensor:
    """Add ``weight`` up in the bins ``place``; what is not ``inside`` goes nowhere."""
    slots = weight.new_zeros(bins + 1)
    return slots.index_add(0, torch.where(inside, place, bins).flatten(), weight.flatten())[:bins]


@rewrites("aten.histc.default")
def _histc(x: torch.Tensor, bins: int = 100, low: float = 0, high: float = 0) -> torch.Tensor:
    """Equal bins; the last holds its upper end."""
    first, last = _range(x, low, high, 1)
    wide = x.to(torch.float32) if not x.is_floating_point() or x.dtype.itemsize < torch.float32.itemsize else x
    place = ((wide - first) * bins / (last - first)).to(torch.int64).clamp(max=bins - 1)
    return _counted(place, (x >= first) & (x <= last), bins, torch.ones_like(x))


def _placed(x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bin of each element between increasing ``edges``, and whether it lies in one."""
    bins = edges.shape[0] - 1
    place = torch.searchsorted(edges, x, right=True) - 1
    return place.clamp(0, bins - 1), (x >= edges[0]) & (x <= edges[-1])


def _density(counts: torch.Tensor, edges: Sequence[torch.Tensor]) -> torch.Tensor:
    """Divide by the total and by the volume of each bin."""
    result = counts / counts.sum()
    for axis, each in enumerate(edges):
        shape = [1] * counts.dim()
        shape[axis] = -1
        result = result / each.diff().reshape(shape)
    return result


@rewrites("aten.histogram.bins_tensor")
def _histogram(
    x: torch.Tensor, bins: torch.Tensor, *, weight: torch.Tensor | None = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    counts = _histogram_of_rows(x.reshape(-1, 1), [bins], weight=weight, density=density)
    return counts, bins.clone()


@rewrites("aten.histogram.bin_ct")
def _histogram_of_equal_bins(
    x: torch.Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,  # noqa: A002  PyTorch's own name
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = range or (0, 0)
    edges = _equal_bins(x, bins, *_range(x.flatten(), low, high, 0.5))
    return _histogram(x, edges, weight=weight, density=density)


@rewrites("aten._histogramdd_from_bin_tensors.default")
def _histogram_of_rows(
    x: torch.Tensor,
    bins: Sequence[torch.Tensor],
    *,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> torch.Tensor:
    """``x`` is [..., dimensions]; the result has one dimension for each."""
    points = x.reshape(-1, x.shape[-1])
    shape = [edges.shape[0] - 1 for edges in bins]
    place = x.new_zeros(points.shape[0], dtype=torch.int64)
    inside = x.new_ones(points.shape[0], dtype=torch.bool)
    for axis, edges in enumerate(bins):
        along, within = _placed(points[:, axis].contiguous(), edges.contiguous())
        place = place * shape[axis] + along
        inside = inside & within
    heavy = x.new_ones(points.shape[0]) if weight is None else weight.reshape(-1)
    counts = _counted(place, inside, torch.Size(shape).numel(), heavy).reshape(shape)
    return _density(counts, bins) if density else counts


@rewrites("aten._histogramdd_bin_edges.default")
def _edges(
    x: torch.Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,  # noqa: A002  PyTorch's own name
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> list[torch.Tensor]:
    del weight, density
    columns = x.reshape(-1, x.shape[-1]).unbind(1)
    ends = [(0.0, 0.0)] * len(bins) if range is None else list(zip(range[::2], range[1::2], strict=True))
    return [
        _equal_bins(column, count, *_range(column, low, high, 0.5))
        for column, count, (low, high) in zip(columns, bins, ends, strict=True)
    ]


def _equal_bins(x: torch.Tensor, bins: int, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    step = (last - first) / bins
    return torch.cat((first + step * torch.arange(bins, dtype=x.dtype, device=x.device), last.reshape(1)))


@rewrites("aten._histogramdd_from_bin_cts.default")
def _histogram_of_rows_in_equal_bins(
    x: torch.Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,  # noqa: A002  PyTorch's own name
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> torch.Tensor:
    return _histogram_of_rows(x, _edges(x, bins, range=range), weight=weight, density=density)
