"""Which composite operators PyTorch takes apart before we see them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from neuron_backend.lowering.families import handler
from neuron_backend.lowering.foreach import foreach_decompositions

if TYPE_CHECKING:
    from collections.abc import Callable

# Beyond PyTorch's core set.
_FURTHER = (
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_cdist_forward",
    "_log_softmax",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_softmax",
    "as_strided_scatter",
    "col2im",
    "count_nonzero",
    "deg2rad",
    "dist",
    "elu",
    "embedding_dense_backward",
    "frac",
    "gelu_backward",
    "grid_sampler_2d",
    "hardtanh",
    "heaviside",
    "im2col",
    "index_add",
    "index_copy",
    "index_fill",
    "isin",
    "leaky_relu",
    "lerp",
    "linalg_vector_norm",
    "logaddexp",
    "logit",
    "logsumexp",
    "masked_fill",
    "nan_to_num",
    "narrow_copy",
    "native_batch_norm",
    "native_batch_norm_backward",
    "native_group_norm",
    "native_layer_norm",
    "native_layer_norm_backward",
    "nll_loss_backward",
    "nll_loss_forward",
    "norm",
    "pixel_shuffle",
    "reflection_pad2d",
    "renorm",
    "replication_pad2d",
    "roll",
    "sgn",
    "std",
    "std_mean",
    "take",
    "trace",
    "unfold",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_nearest2d",
    "upsample_trilinear3d",
    "xlogy",
)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition table for `make_fx` and AOTAutograd: one shared dictionary, not to be changed."""
    further = [getattr(torch.ops.aten, name) for name in _FURTHER]
    table = {**core_aten_decompositions(), **get_decompositions(further), **foreach_decompositions()}
    # What we lower ourselves stays whole: fewer nodes, and numerics that are ours to keep.
    return {operator: function for operator, function in table.items() if handler(operator) is None}
