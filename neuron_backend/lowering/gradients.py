"""Backward operators that PyTorch leaves to each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.rewriting import rewrites

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

_MEAN = 1  # torch's number for the reduction of a loss


@rewrites(
    "aten.replication_pad1d_backward.default",
    "aten.replication_pad2d_backward.default",
    "aten.replication_pad3d_backward.default",
)
def _replication_pad_backward(gradient: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    """Add up along each dimension what one element was copied to; ``padding`` begins with the last dimension."""
    result = gradient
    for number, low in enumerate(padding[::2]):
        axis = x.dim() - 1 - number
        source = (torch.arange(result.shape[axis], device=x.device) - low).clamp(0, x.shape[axis] - 1)
        shape = [*result.shape[:axis], x.shape[axis], *result.shape[axis + 1 :]]
        result = result.new_zeros(shape).index_add(axis, source, result)
    return result


@rewrites("aten.multi_margin_loss_backward.default")
def _multi_margin_loss_backward(  # noqa: PLR0917  PyTorch's own signature
    gradient: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    p: float,
    margin: float,
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> torch.Tensor:
    rows, labels = x.reshape(-1, x.shape[-1] if x.dim() else 1), target.reshape(-1, 1)
    distance = margin - rows.gather(1, labels) + rows
    slope = torch.ones_like(rows) if p == 1 else 2 * distance
    if weight is not None:
        slope = slope * weight[labels]
    others = torch.arange(rows.shape[1], device=x.device) != labels
    slope = torch.where(others & (distance > 0), slope, 0) / rows.shape[1]
    slope = torch.where(others, slope, -slope.sum(1, keepdim=True))
    if reduction == _MEAN:
        slope = slope / rows.shape[0]
    return (slope * gradient.reshape(-1, 1)).reshape(x.shape)


@rewrites("aten.multilabel_margin_loss_forward.default")
def _multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and which elements are labels; torch's decomposition counts label 0 for each that is missing."""
    rows = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    places, named = _labels_of(target.reshape(rows.shape))
    chosen = torch.zeros_like(rows).scatter_add(1, places, named.to(x.dtype)) > 0
    distance = 1 - rows.gather(1, places).unsqueeze(2) + rows.unsqueeze(1)  # [row, label, element]
    active = (distance > 0) & named.unsqueeze(2) & ~chosen.unsqueeze(1)
    loss = torch.where(active, distance, 0).sum((1, 2)) / rows.shape[1]
    if reduction == _MEAN:
        loss = loss.mean()
    elif reduction:
        loss = loss.sum()
    return loss.reshape(x.shape[:-1]) if not reduction else loss, chosen.to(x.dtype).reshape(target.shape)


def _labels_of(target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the labels of each row, which end at its first -1, and which there are; 0 stands for one that is not."""
    named = (target < 0).to(torch.int64).cumsum(1) == 0
    return torch.where(named, target, 0), named


@rewrites("aten.multilabel_margin_loss_backward.default")
def _multilabel_margin_loss_backward(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, is_target: torch.Tensor
) -> torch.Tensor:
    """Compare each label with each other element."""
    rows = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    chosen = is_target.reshape(rows.shape) != 0
    places, named = _labels_of(target.reshape(rows.shape))
    distance = 1 - rows.gather(1, places).unsqueeze(2) + rows.unsqueeze(1)  # [row, label, element]
    active = (distance > 0) & named.unsqueeze(2) & ~chosen.unsqueeze(1)
    slope = active.to(x.dtype)
    result = slope.sum(1).scatter_add(1, places, -slope.sum(2)) / rows.shape[1]
    if reduction == _MEAN:
        result = result / rows.shape[0]
    return (result * gradient.reshape(-1, 1)).reshape(x.shape)


@rewrites("aten.batch_norm_backward.default")
def _batch_norm_backward(  # noqa: PLR0917  PyTorch's own signature
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    save_mean: torch.Tensor | None,
    save_var: torch.Tensor | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    _reserve: torch.Tensor,
) -> Any:
    return aten.native_batch_norm_backward.default(
        gradient, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@rewrites("aten._trilinear.default")
def _trilinear(  # noqa: PLR0917  PyTorch's own signature
    first: torch.Tensor,
    second: torch.Tensor,
    third: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Multiply three tensors, each with new dimensions at its ``expand``, and sum over ``sumdim``."""
    del unroll_dim
    spread = []
    for tensor, axes in ((first, expand1), (second, expand2), (third, expand3)):
        for axis in axes:
            tensor = tensor.unsqueeze(axis)  # noqa: PLW2901
        spread.append(tensor)
    product = spread[0] * spread[1] * spread[2]
    return product.sum(list(sumdim)) if sumdim else product
