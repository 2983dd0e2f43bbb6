"""Cross entropy of a linear layer's results, chunk by chunk: at no time are the logits of the whole batch there.

PyTorch's own kernel computes in place, which a graph cannot hold; this is the same without.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.modules.linear_cross_entropy  # registers the operators

from neuron_backend.lowering.rewriting import rewrites

if TYPE_CHECKING:
    from collections.abc import Iterator


def _chunks(
    x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, size: int
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield ``size`` rows at a time: which they are, and their log-probabilities."""
    for start in range(0, x.shape[0], size):
        rows = slice(start, start + size)
        logits = x[rows] @ matrix.mT
        yield rows, torch.log_softmax(logits if bias is None else logits + bias, 1)


def _at(likely: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return likely.gather(1, classes.unsqueeze(1)).squeeze(1)


def _weights(
    target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's weight, 0 where it is ignored, and targets that are classes in any case."""
    ignored = target == ignore_index
    classes = torch.where(ignored, 0, target)
    ones = torch.ones_like(target, dtype=dtype) if weight is None else weight.to(dtype)[classes]
    return torch.where(ignored, 0, ones), classes


@rewrites("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default")
def _loss_of_each(  # noqa: PLR0917  PyTorch's own signature
    x: torch.Tensor,
    matrix: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
) -> torch.Tensor:
    del acc_policy  # of what an accumulator is saved
    weights, classes = _weights(target, weight, ignore_index, acc_dtype)
    wide = None if bias is None else bias.to(acc_dtype)
    chunks = _chunks(x.to(acc_dtype), matrix.to(acc_dtype), wide, batch_chunk_size)
    losses = [-_at(likely, classes[rows]) * weights[rows] for rows, likely in chunks]
    return torch.cat(losses).to(x.dtype) if losses else x.new_empty(0)


@rewrites("torch_nn._linear_cross_entropy_batch_chunked.default")
def _loss_and_gradients(  # noqa: PLR0917  PyTorch's own signature
    x: torch.Tensor,
    matrix: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    allow_retain_graph: bool,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss and its gradients by input, matrix and bias; of those not asked for, empty tensors."""
    del acc_policy, allow_retain_graph
    if label_smoothing:
        raise NotImplementedError("linear_cross_entropy does not support label smoothing")
    weights, classes = _weights(target, weight, ignore_index, acc_dtype)
    if reduction == "mean":
        whole = weights.sum()
        weights = weights / torch.where(whole == 0, math.nan, whole)
    loss = x.new_full((), math.nan if reduction == "mean" and not x.shape[0] else 0, dtype=acc_dtype)
    by_input: list[torch.Tensor] = []
    by_matrix = torch.zeros_like(matrix, dtype=acc_dtype)
    by_bias = x.new_zeros(matrix.shape[0], dtype=acc_dtype)
    wide, wide_matrix = x.to(acc_dtype), matrix.to(acc_dtype)
    wide_bias = None if bias is None else bias.to(acc_dtype)
    for rows, likely in _chunks(wide, wide_matrix, wide_bias, batch_chunk_size):
        loss = loss - (_at(likely, classes[rows]) * weights[rows]).sum()
        hit = torch.arange(likely.shape[1], device=x.device) == classes[rows].unsqueeze(1)
        slope = (likely.exp() - hit.to(acc_dtype)) * weights[rows].unsqueeze(1)
        by_input.append(slope @ wide_matrix)
        by_matrix = by_matrix + slope.mT @ wide[rows]
        by_bias = by_bias + slope.sum(0)
    return (
        loss.to(x.dtype),
        _asked(torch.cat(by_input) if by_input else wide, x.dtype, asked=compute_input_grad),
        _asked(by_matrix, x.dtype, asked=compute_linear_weight_grad),
        _asked(by_bias, x.dtype, asked=compute_linear_bias_grad),
    )


def _asked(gradient: torch.Tensor, dtype: torch.dtype, *, asked: bool) -> torch.Tensor:
    return gradient.to(dtype) if asked else gradient.new_empty((0,) * gradient.dim(), dtype=dtype)
