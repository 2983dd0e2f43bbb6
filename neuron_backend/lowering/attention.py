"""Scaled dot-product attention in one piece, and its gradients, as torch calls it where no device has a kernel.

Scores and sums of 16-bit floats are made in float32. The formulas of the backward, from the logarithm of each row's sum
instead of the weights, are those of FlashAttention-2 (Dao, arXiv:2307.08691, section 3.1).
"""

from __future__ import annotations

import math

import torch

from neuron_backend.lowering.dtypes import accumulator
from neuron_backend.lowering.rewriting import rewrites


def _factor(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    is_causal: bool,
    mask: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    """Return what the softmax is taken of, ``[batch, heads, queries, keys]``; minus infinity where nothing is seen."""
    scores = query @ key.mT * _factor(query, scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(seen, scores, -torch.inf)
    return scores if mask is None else scores + mask.to(scores.dtype)


def _for_each_head(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return keys or values in the type of computation, repeated for the heads of ``query`` that share them."""
    tensor = tensor.to(accumulator(tensor.dtype))
    shared = query.shape[1] // tensor.shape[1]
    return tensor if shared == 1 else tensor.repeat_interleave(shared, 1)


def _of_shared_heads(gradient: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return the gradient of keys or values as they were ``given``, from that of their repetitions."""
    if gradient.shape[1] != given.shape[1]:
        gradient = gradient.reshape(given.shape[0], given.shape[1], -1, *given.shape[2:]).sum(2)
    return gradient.to(given.dtype)


@rewrites("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention and the logarithm of each row's sum. A query that sees no key gets zeros."""
    _refuse_dropout(dropout_p)
    wide = query.to(accumulator(query.dtype))
    scores = _scores(wide, _for_each_head(key, query), is_causal, attn_mask, scale)
    largest = scores.amax(-1, keepdim=True)
    largest = torch.where(largest == -torch.inf, 0, largest)
    weights = (scores - largest).exp()
    total = weights.sum(-1, keepdim=True)
    output = weights @ _for_each_head(value, query) / torch.where(total == 0, 1, total)
    return output.to(query.dtype), (largest + total.log()).squeeze(-1)


@rewrites("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def _attention_backward(  # noqa: PLR0917  PyTorch's own signature
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _refuse_dropout(dropout_p)
    wide_query, wide_gradient, wide_out = (each.to(accumulator(each.dtype)) for each in (query, gradient, out))
    keys, values = _for_each_head(key, query), _for_each_head(value, query)
    total = logsumexp.unsqueeze(-1)
    scores = _scores(wide_query, keys, is_causal, attn_mask, scale)
    weights = torch.where(total == -torch.inf, 0, (scores - total).exp())
    by_weights = wide_gradient @ values.mT - (wide_gradient * wide_out).sum(-1, keepdim=True)
    by_scores = weights * by_weights * _factor(query, scale)
    return (
        (by_scores @ keys).to(query.dtype),
        _of_shared_heads(by_scores.mT @ wide_query, key),
        _of_shared_heads(weights.mT @ wide_gradient, value),
    )


def _refuse_dropout(probability: float) -> None:
    if probability != 0:
        raise NotImplementedError(
            f"this form of attention has no dropout, but was given {probability}: "
            "scaled_dot_product_attention takes another one then"
        )
