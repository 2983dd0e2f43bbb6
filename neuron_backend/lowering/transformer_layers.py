"""The one-operator forms of attention and of an encoder's layer that torch.nn takes where no gradient is asked for.

What they compute is read off torch's kernels (aten/src/ATen/native/transformers/attention.cpp, transformer.cpp): a mask
hides where it is not zero, also a mask of floats, and a query that may see nothing gets NaN.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from neuron_backend.lowering.rewriting import rewrites

_OF_PAIRS, _OF_KEYS = 0, 1


def _hidden(mask: torch.Tensor | None, mask_type: int | None) -> torch.Tensor | None:
    """Return what is hidden, as it is spread over ``[batch, heads, queries, keys]``."""
    if mask is None:
        return None
    hidden = mask.to(torch.bool)
    if mask_type == _OF_KEYS:
        return hidden[:, None, None, :]
    if mask_type == _OF_PAIRS:
        return hidden[None, None]
    return hidden


@rewrites("aten._native_multi_head_attention.default")
def _multi_head_attention(  # noqa: PLR0917  PyTorch's own signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    heads = [
        functional.linear(given, weight, bias).reshape(*given.shape[:2], num_head, -1).transpose(1, 2)
        for given, weight, bias in zip((query, key, value), weights, biases, strict=True)
    ]
    scores = heads[0] / math.sqrt(embed_dim // num_head) @ heads[1].mT
    hidden = _hidden(mask, mask_type)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    attention = scores.softmax(-1)
    output = functional.linear((attention @ heads[2]).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, attention.mean(1) if average_attn_weights else attention


@rewrites("aten._transformer_encoder_layer_fwd.default")
def _encoder_layer(  # noqa: PLR0917  PyTorch's own signature
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    def attended(x: torch.Tensor) -> torch.Tensor:
        return _multi_head_attention(
            *(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)
        )[0]

    def fed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else inner.relu()
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    def first_norm(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        between = src + attended(first_norm(src))
        return between + fed_forward(second_norm(between))
    between = first_norm(src + attended(src))
    return second_norm(between + fed_forward(between))
