"""Fractional maximum pooling: windows of one size at places that a random number per plane shifts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from neuron_backend.lowering.rewriting import rewrites

if TYPE_CHECKING:
    from collections.abc import Sequence


def _starts(sample: torch.Tensor, size: int, count: int, width: int) -> torch.Tensor:
    """First element of each window, [..., count]; the last window ends where the dimension does.

    The formula is that of ATen/native/FractionalMaxPooling.h.
    """
    last = sample.new_full((*sample.shape, 1), size - width, dtype=torch.int64)
    if count == 1:
        return last
    step = (size - width) / (count - 1)
    place = torch.arange(count - 1, dtype=sample.dtype, device=sample.device)
    first = ((place + sample.unsqueeze(-1)) * step).to(torch.int64) - (sample * step).to(torch.int64).unsqueeze(-1)
    return torch.cat((first, last), -1)


def _pool(
    x: torch.Tensor, kernel: Sequence[int], count: Sequence[int], samples: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return maxima and their places in the plane; ``samples`` has one [N, C] for each spatial dimension."""
    dimensions = len(kernel)
    space = x.shape[-dimensions:]
    flat = x.reshape(-1, math.prod(space))
    element = x.new_zeros((flat.shape[0], *[1] * (2 * dimensions)), dtype=torch.int64)
    for axis, (size, width, number, sample) in enumerate(zip(space, kernel, count, samples, strict=True)):
        places = _starts(sample.reshape(-1), size, number, width).unsqueeze(-1) + torch.arange(width, device=x.device)
        shape = [flat.shape[0], *[1] * (2 * dimensions)]
        shape[1 + axis], shape[1 + dimensions + axis] = number, width
        element = element * size + places.reshape(shape)
    windows = element.reshape(flat.shape[0], math.prod(count), math.prod(kernel))
    values = flat.gather(1, windows.flatten(1)).reshape(windows.shape)
    best, which = values.max(-1)
    found = windows.gather(2, which.unsqueeze(-1)).squeeze(-1)
    shape = [*x.shape[:-dimensions], *count]
    return best.reshape(shape), found.reshape(shape)


@rewrites("aten.fractional_max_pool2d.default")
def _pool_2d(
    x: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the first random number of a plane to its columns, which is so in two dimensions only."""
    return _pool(x, kernel_size, output_size, [random_samples[..., 1], random_samples[..., 0]])


@rewrites("aten.fractional_max_pool3d.default")
def _pool_3d(
    x: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _pool(x, kernel_size, output_size, random_samples.unbind(-1))


def _backward(gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, dimensions: int) -> torch.Tensor:
    flat = x.new_zeros(x.shape).flatten(-dimensions)
    return flat.scatter_add(-1, indices.flatten(-dimensions), gradient.flatten(-dimensions)).reshape(x.shape)


@rewrites("aten.fractional_max_pool2d_backward.default")
def _pool_2d_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: torch.Tensor,
) -> torch.Tensor:
    del kernel_size, output_size
    return _backward(gradient, x, indices, 2)


@rewrites("aten.fractional_max_pool3d_backward.default")
def _pool_3d_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: torch.Tensor,
) -> torch.Tensor:
    del kernel_size, output_size
    return _backward(gradient, x, indices, 3)
