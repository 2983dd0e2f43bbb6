"""How AOTAutograd's joint graph is cut into forward and backward: as torch cuts it, with random results kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import CheckpointPolicy

from neuron_backend.lowering import is_random
from neuron_backend.torch_private import default_partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import GraphModule


def partition(joint: GraphModule, joint_inputs: Sequence[Any], **options: Any) -> tuple[GraphModule, GraphModule]:
    """Return forward and backward graph.

    Under activation checkpointing the backward computes the forward anew, but must see the same random numbers. torch
    can replay them only on devices that it knows; so here what a random operator drew is kept.
    """
    for node in joint.graph.nodes:
        if is_random(node.target) and "recompute" in node.meta:
            parts = node.users if isinstance(node.meta.get("val"), tuple) else ()
            for kept in (node, *parts):
                kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    forward, backward = default_partition(joint, joint_inputs, **options)
    return forward, backward
