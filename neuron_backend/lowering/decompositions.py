"""Which composite operators PyTorch takes apart before we see them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.lowering.families import handler
from neuron_backend.lowering.foreach import foreach_decompositions
from neuron_backend.lowering.lying import lying_alike
from neuron_backend.lowering.matrix_functions import matrix_decompositions
from neuron_backend.lowering.random import random_between
from neuron_backend.lowering.rewriting import rewriting_table
from neuron_backend.lowering.validity import checked
from neuron_backend.torch_private import core_aten_decompositions, get_decompositions

if TYPE_CHECKING:
    from collections.abc import Callable

# Beyond PyTorch's core set.
_FURTHER = (
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_log_softmax",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_softmax",
    "dist",
    "elu",
    "grid_sampler_2d",
    "hardtanh",
    "leaky_relu",
    "linalg_vector_norm",
    "narrow_copy",
    "native_batch_norm",
    "native_group_norm",
    "native_layer_norm",
    "tril_indices",
    "triu_indices",
    "unfold",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_nearest2d",
    "upsample_trilinear3d",
)


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition table for `make_fx` and AOTAutograd: one shared dictionary, not to be changed."""
    further = [getattr(torch.ops.aten, name) for name in _FURTHER]
    table = {**core_aten_decompositions(), **get_decompositions(further), **foreach_decompositions()}
    table[getattr(torch.ops.aten.random, "from")] = random_between
    table |= matrix_decompositions()
    table |= rewriting_table()
    # What we lower ourselves stays whole: fewer nodes, and numerics that are ours to keep.
    return {operator: checked(operator, function) for operator, function in table.items() if handler(operator) is None}


@functools.cache
def decompositions_for_graphs() -> dict[Any, Callable[..., Any]]:
    """Return the same with the strides of what they take apart: for AOTAutograd, whose graphs promise strides."""
    return {operator: lying_alike(operator, function) for operator, function in decompositions().items()}
