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

aten = torch.ops.aten

# Beyond PyTorch's core set.
_FURTHER = (
    aten._batch_norm_with_update,
    aten._batch_norm_with_update_functional,
    aten._cdist_forward,
    aten._log_softmax,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._softmax,
    aten.addbmm,
    aten.col2im,
    aten.count_nonzero,
    aten.deg2rad,
    aten.diagonal_scatter,
    aten.dist,
    aten.elu,
    aten.embedding_dense_backward,
    aten.fmax,
    aten.fmin,
    aten.frac,
    aten.gelu_backward,
    aten.grid_sampler_2d,
    aten.hardtanh,
    aten.heaviside,
    aten.hypot,
    aten.im2col,
    aten.index_add,
    aten.index_copy,
    aten.index_fill,
    aten.isin,
    aten.leaky_relu,
    aten.lerp,
    aten.linalg_vector_norm,
    aten.logaddexp,
    aten.logit,
    aten.logsumexp,
    aten.masked_fill,
    aten.nan_to_num,
    aten.narrow_copy,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
    aten.native_group_norm,
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten.nll_loss_backward,
    aten.nll_loss_forward,
    aten.norm,
    aten.pixel_shuffle,
    aten.reflection_pad2d,
    aten.renorm,
    aten.replication_pad2d,
    aten.roll,
    aten.sgn,
    aten.std,
    aten.std_mean,
    aten.take,
    aten.trace,
    aten.unfold,
    aten.upsample_bilinear2d,
    aten.upsample_nearest2d,
    aten.xlogy,
)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition table for `make_fx` and AOTAutograd: one shared dictionary, not to be changed."""
    table = {**core_aten_decompositions(), **get_decompositions(_FURTHER), **foreach_decompositions()}
    # What we lower ourselves stays whole: fewer nodes, and numerics that are ours to keep.
    return {operator: function for operator, function in table.items() if handler(operator) is None}
