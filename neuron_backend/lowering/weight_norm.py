"""The gradient of weight normalisation, ``w = v * g / |v|``, for which PyTorch has no decomposition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_backend.lowering.rewriting import rewrites

if TYPE_CHECKING:
    import torch


@rewrites("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    gradient: torch.Tensor, direction: torch.Tensor, length: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of ``direction`` and ``length``; ``norms`` are of all axes but ``dim``, which are kept."""
    others = [axis for axis in range(direction.dim()) if axis != dim % direction.dim()]
    wide = norms.dtype  # float32 where the weights are of 16 bits
    gradient, value = gradient.to(wide), direction.to(wide)
    along = (gradient * value).sum(others, keepdim=True) / norms
    into_direction = (gradient - value * along / norms) * (length.to(wide) / norms)
    return into_direction.to(direction.dtype), along.to(length.dtype)
