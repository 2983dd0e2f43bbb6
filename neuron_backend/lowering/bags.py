"""Embedding bags: rows of a table, reduced over the bags that offsets cut a list of indices into; and the gradients.

Sums of 16-bit floats are made in float32: a bag has many rows.
"""

from __future__ import annotations

import torch

from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.rewriting import rewrites

_MEAN, _MAX = 1, 2


@rewrites("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _embedding_bag(  # noqa: PLR0917  PyTorch's own signature
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the bags, each index's bag, the bags' lengths, and for maxima the index that each element came from.

    Beside the bags, these are for our own backward. An empty bag is all zeros, and so is one of padding alone.
    """
    del scale_grad_by_freq, sparse
    starts = offsets[:-1] if include_last_offset else offsets
    bags = starts.shape[0]
    position = torch.arange(indices.shape[0], dtype=offsets.dtype, device=weight.device)
    bag = torch.searchsorted(starts.contiguous(), position, right=True) - 1
    counts = indices != padding_idx
    size = indices.new_zeros(bags, dtype=torch.int64).index_add(0, bag, counts.to(torch.int64))
    rows = weight[indices]
    places = indices.new_zeros(bags, weight.shape[1] if mode == _MAX else 0, dtype=torch.int64)
    if mode == _MAX:
        output, places = _maxima(rows, bag, counts, indices, size)
        return output, bag, size, places
    rows = rows.to(accumulator(rows.dtype))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    rows = torch.where(counts.unsqueeze(1), rows, 0)
    output = rows.new_zeros(bags, weight.shape[1]).index_add(0, bag, rows)
    if mode == _MEAN:
        output = output / size.clamp(min=1).unsqueeze(1)
    return output.to(weight.dtype), bag, size, places


def _maxima(
    rows: torch.Tensor, bag: torch.Tensor, counts: torch.Tensor, indices: torch.Tensor, size: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maxima and the index of the first row that has each."""
    shape = (size.shape[0], rows.shape[1])
    spread = bag.unsqueeze(1).expand(rows.shape)
    candidates = torch.where(counts.unsqueeze(1), rows, -torch.inf)
    best = rows.new_full(shape, -torch.inf).scatter_reduce(0, spread, candidates, "amax")
    number = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1).expand(rows.shape)
    wins = (candidates == best[bag]) & counts.unsqueeze(1)
    last = rows.shape[0]
    first = number.new_full(shape, last).scatter_reduce(0, spread, torch.where(wins, number, last), "amin")
    filled = size.unsqueeze(1) > 0
    chosen = torch.cat((indices.to(torch.int64), size.new_zeros(1)))[first]
    return torch.where(filled, best, 0), torch.where(filled, chosen, -1)


@rewrites("aten._embedding_bag_dense_backward.default")
def _dense_backward(  # noqa: PLR0917  PyTorch's own signature
    gradient: torch.Tensor,
    indices: torch.Tensor,
    bag: torch.Tensor,
    size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    dtype = gradient.dtype
    gradient = gradient.to(accumulator(dtype))
    table = gradient.new_zeros(num_weights + 1, gradient.shape[1])  # the last row takes what belongs to none
    if mode == _MAX:
        places = torch.where(maximum_indices < 0, num_weights, maximum_indices)
        return table.scatter_add(0, places, gradient)[:num_weights].to(dtype)
    if mode == _MEAN:
        gradient = gradient / size.clamp(min=1).unsqueeze(1)
    rows = gradient[bag]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        frequency = bag.new_zeros(num_weights).index_add(0, indices, torch.ones_like(bag))
        rows = rows / frequency[indices].unsqueeze(1)
    places = torch.where(indices == padding_idx, num_weights, indices)
    return table.index_add(0, places, rows)[:num_weights].to(dtype)


@rewrites("aten._embedding_bag_backward.default")
def _backward(  # noqa: PLR0917  PyTorch's own signature
    gradient: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bag: torch.Tensor,
    size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    del offsets
    if sparse:
        raise NotImplementedError("neuron has no sparse tensors: use an embedding bag with sparse=False")
    return _dense_backward(
        *(gradient, indices, bag, size, maximum_indices),
        *(num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx),
    )


@rewrites("aten._embedding_bag_per_sample_weights_backward.default")
def _weights_backward(  # noqa: PLR0917  PyTorch's own signature
    gradient: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bag: torch.Tensor,
    mode: int,
    padding_idx: int = -1,
) -> torch.Tensor:
    del offsets, mode  # weights per sample go with sums only
    wide = accumulator(weight.dtype)
    products = (gradient[bag].to(wide) * weight[indices].to(wide)).sum(1)
    return torch.where(indices == padding_idx, 0, products).to(weight.dtype)
