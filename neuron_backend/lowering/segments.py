"""Reduction of the segments that lengths or offsets cut a dimension into, and its gradient."""

from __future__ import annotations

import math

import torch

from neuron_backend.lowering.rewriting import rewrites

_REDUCTIONS = {"sum": "sum", "mean": "sum", "max": "amax", "min": "amin", "prod": "prod"}
_IDENTITIES = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}


class _Segments:
    """Which segment each element along ``axis`` of ``data`` is in; the last one is that of elements in none."""

    def __init__(
        self, data: torch.Tensor, lengths: torch.Tensor | None, offsets: torch.Tensor | None, axis: int
    ) -> None:
        if lengths is None:
            if offsets is None:
                raise RuntimeError("segment_reduce: expected lengths or offsets")
            offsets = offsets.contiguous()
            lengths = offsets.diff()
        else:
            offsets = torch.cat((torch.zeros_like(lengths[..., :1]), lengths.cumsum(-1).to(lengths.dtype)), -1)
        self.count = lengths.shape[-1]
        self.axis = axis % data.dim()
        place = torch.arange(data.shape[self.axis], dtype=offsets.dtype, device=data.device)
        place = place.expand(*offsets.shape[:-1], place.shape[0]).contiguous()
        number = torch.searchsorted(offsets, place, right=True) - 1
        number = torch.where((number < 0) | (number >= self.count), self.count, number)
        self.lengths = self._spread(data, torch.cat((lengths, torch.zeros_like(lengths[..., :1])), -1))
        self.number = self._spread(data, number).expand(data.shape)

    def _spread(self, data: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.reshape(*value.shape, *[1] * (data.dim() - value.dim()))

    def reduced(self, data: torch.Tensor, reduction: str, initial: float) -> torch.Tensor:
        """Return [..., segments, ...], with a further one for elements in none."""
        shape = [*data.shape[: self.axis], self.count + 1, *data.shape[self.axis + 1 :]]
        return data.new_full(shape, initial).scatter_reduce(self.axis, self.number, data, reduction)

    def each(self, per_segment: torch.Tensor) -> torch.Tensor:
        """Give each element what its segment has; those in none have zero."""
        padded = per_segment
        if per_segment.shape[self.axis] == self.count:
            padded = torch.cat((per_segment, torch.zeros_like(per_segment.narrow(self.axis, 0, 1))), self.axis)
        return padded.gather(self.axis, self.number)


@rewrites("aten.segment_reduce.default")
def _segment_reduce(
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> torch.Tensor:
    """Reduce; an empty segment is ``initial``, or what the reduction of nothing is: NaN for a mean."""
    del indices, unsafe
    segments = _Segments(data, lengths, offsets, axis)
    start = _IDENTITIES[reduce] if initial is None else initial
    result = segments.reduced(data, _REDUCTIONS[reduce], start)
    if reduce == "mean":
        empty = math.nan if initial is None else initial
        length = segments.lengths
        result = torch.where(length == 0, empty, result / length.clamp(min=1))
    return result.narrow(segments.axis, 0, segments.count)


def _others(segments: _Segments, data: torch.Tensor, initial: float) -> torch.Tensor:
    """Return for each element the product of the others of its segment: by division but for a zero and for NaN."""
    zero, lost = data == 0, data.isnan()
    kept = torch.where(zero | lost, 1, data)
    product = segments.each(segments.reduced(kept, "prod", initial)) / kept
    zeros, lost_ones = (
        segments.each(segments.reduced(each.to(data.dtype), "sum", 0)) - each.to(data.dtype) for each in (zero, lost)
    )
    return torch.where(lost_ones > 0, math.nan, torch.where(zeros > 0, 0, product))


@rewrites("aten._segment_reduce_backward.default")
def _segment_reduce_backward(
    gradient: torch.Tensor,
    output: torch.Tensor,
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> torch.Tensor:
    """Return the gradient by ``data``; the extremes of a segment share theirs."""
    segments = _Segments(data, lengths, offsets, axis)
    outer = segments.each(gradient)
    if reduce == "sum":
        return outer
    if reduce == "mean":
        return outer / segments.each(segments.lengths.expand(_one_more(output, segments.axis)).to(data.dtype)).clamp(
            min=1
        )
    if reduce == "prod":
        return outer * _others(segments, data, 1.0 if initial is None else initial)
    best = (data == segments.each(output)) | data.isnan()
    sharing = segments.each(segments.reduced(best.to(data.dtype), "sum", 0))
    return torch.where(best, outer / sharing, 0)


def _one_more(per_segment: torch.Tensor, axis: int) -> list[int]:
    return [size + (each == axis) for each, size in enumerate(per_segment.shape)]
