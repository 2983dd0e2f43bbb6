"""Operators that pick or place elements by rank or by a mask, with results of a known shape."""

from __future__ import annotations

import torch

from neuron_backend.lowering.rewriting import rewrites


@rewrites("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor | complex) -> torch.Tensor:
    """Write one value; indices may be counted from the end, which those of ``index_copy`` may not."""
    filler = value.to(x.dtype) if isinstance(value, torch.Tensor) else x.new_full((), value)
    vector = x.reshape(x.shape or (1,))
    indices = [None] * (dim % vector.dim()) + [index.reshape(-1)]
    result: torch.Tensor = torch.ops.aten._unsafe_index_put.default(vector, indices, filler)  # noqa: SLF001 - its name
    return result.reshape(x.shape)


@rewrites("aten.mode.default")
def _mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most frequent value, the least among equals, and the last place that it has.

    In a sorted row each value is a run: the first place at which a run is longest is the end of the one meant.
    """
    if not x.dim():
        return x.clone(), x.new_zeros((), dtype=torch.int64)
    ordered, places = x.movedim(dim, -1).sort(stable=True)
    number = torch.arange(ordered.shape[-1], device=x.device).expand(ordered.shape)
    starts = torch.ones_like(ordered[..., :1], dtype=torch.bool)
    starts = torch.cat((starts, ordered[..., 1:] != ordered[..., :-1]), -1)
    start = torch.where(starts, number, 0).cummax(-1).values
    end = (number - start).argmax(-1, keepdim=True)
    found = [each.gather(-1, end).movedim(-1, dim) for each in (ordered, places)]
    values, indices = found if keepdim else (each.squeeze(dim) for each in found)
    return values, indices


@rewrites("aten.nanmedian.dim")
def _nanmedian(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lower of two middles among what is not NaN: a sorted row has NaN at its end."""
    if not x.dim():
        return x.clone(), x.new_zeros((), dtype=torch.int64)
    ordered, places = x.movedim(dim, -1).sort(stable=True)
    middle = ((~ordered.isnan()).sum(-1, keepdim=True) - 1).clamp(min=0) // 2
    found = [each.gather(-1, middle).movedim(-1, dim) for each in (ordered, places)]
    values, indices = found if keepdim else (each.squeeze(dim) for each in found)
    return values, indices


@rewrites("aten.nanmedian.default")
def _nanmedian_of_all(x: torch.Tensor) -> torch.Tensor:
    return _nanmedian(x.reshape(-1), 0)[0]


@rewrites("aten.nonzero_static.default")
def _nonzero_static(x: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """Return [size, dimensions]: coordinates of the first elements that are not zero, then ``fill_value``."""
    there = (x != 0).reshape(-1)
    room = torch.cat((there, there.new_zeros(size)))
    order = (~room).to(torch.int8).argsort(stable=True)[:size]
    columns = []
    for extent in reversed(x.shape):
        columns.append(order.remainder(max(extent, 1)))
        order = order // max(extent, 1)
    if not columns:
        return x.new_zeros((size, 0), dtype=torch.int64)
    filled = torch.arange(size, device=x.device).unsqueeze(1) < there.sum()
    return torch.where(filled, torch.stack(columns[::-1], 1), fill_value)


@rewrites("aten.masked_scatter_backward.default")
def _masked_scatter_backward(gradient: torch.Tensor, mask: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Give the n-th element of the source the gradient of the n-th true place."""
    count = torch.Size(sizes).numel()
    chosen = mask.expand(gradient.shape).reshape(-1)
    ordinal = torch.where(chosen, chosen.to(torch.int64).cumsum(0) - 1, count)
    return gradient.new_zeros(count + 1).index_put((ordinal,), gradient.reshape(-1))[:count].reshape(sizes)
