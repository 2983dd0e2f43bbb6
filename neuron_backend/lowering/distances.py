"""Distances between rows: cdist, pdist, and their gradients."""

from __future__ import annotations

import math

import torch

from neuron_backend.lowering.rewriting import rewrites

aten = torch.ops.aten

# torch's rule (ATen/native/Distance.cpp): from so many rows on, Euclidean distances go through a product.
_BY_PRODUCT = 25
_EUCLIDEAN = 2


@rewrites("aten._cdist_forward.default")
def _cdist(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    """``compute_mode``: 1 always by product, 2 never, else by the number of rows."""
    many = max(x1.shape[-2], x2.shape[-2]) > _BY_PRODUCT
    if p == _EUCLIDEAN and (compute_mode == 1 or (not compute_mode and many)):
        product: torch.Tensor = aten._euclidean_dist.default(x1, x2)  # noqa: SLF001  torch's name
        return product
    return _length(_differences(x1, x2), p)


def _differences(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    return x1.unsqueeze(-2) - x2.unsqueeze(-3)


def _length(difference: torch.Tensor, p: float) -> torch.Tensor:
    if not difference.shape[-1]:
        return difference.sum(-1)
    result: torch.Tensor = torch.linalg.vector_norm(difference, p, dim=-1)
    return result


@rewrites("aten._cdist_backward.default")
def _cdist_backward(
    gradient: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, p: float, distance: torch.Tensor
) -> torch.Tensor:
    """Return the gradient by ``x1``, with batch dimensions broadcast; 0 where two rows are the same."""
    difference = _differences(x1, x2)
    return (_slope(difference, p, distance.unsqueeze(-1)) * gradient.unsqueeze(-1)).sum(-2)


def _slope(difference: torch.Tensor, p: float, distance: torch.Tensor) -> torch.Tensor:
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign()
    if p == math.inf:
        return difference.sign() * (difference.abs() == distance)
    powers = difference / distance if p == _EUCLIDEAN else difference.sign() * (difference.abs() / distance) ** (p - 1)
    nothing = (distance == 0) | ((difference == 0) & (p < 1))
    return torch.where(nothing, 0, powers)


def _pairs(rows: int, device: torch.device) -> torch.Tensor:
    """Return [rows, rows]: where the distance of a pair of rows stands in pdist's result; its end for no pair."""
    index = torch.arange(rows, device=device)
    first, second = index.unsqueeze(1), index.unsqueeze(0)
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    place = low * rows - low * (low + 1) // 2 + high - low - 1
    return torch.where(low == high, rows * (rows - 1) // 2, place)


@rewrites("aten._pdist_forward.default")
def _pdist(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    rows = x.shape[0]
    count = rows * (rows - 1) // 2
    if not count:
        return x.new_zeros(0)
    distance = _length(_differences(x, x), p)
    return distance.new_zeros(count + 1).index_put((_pairs(rows, x.device),), distance)[:count]


@rewrites("aten._pdist_backward.default")
def _pdist_backward(gradient: torch.Tensor, x: torch.Tensor, p: float, distance: torch.Tensor) -> torch.Tensor:
    if not distance.numel():
        return torch.zeros_like(x)
    places = _pairs(x.shape[0], x.device)
    square, lengths = (torch.cat((each, each.new_zeros(1)))[places] for each in (gradient, distance))
    return _cdist_backward(square, x, x, p, lengths)
