"""Chains of views in a graph: whose memory a node shows, and as_strided, which sees all of that memory."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from neuron_backend.torch_private import OpOverload

if TYPE_CHECKING:
    from torch.fx import GraphModule

AS_STRIDED = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)


def viewed(node: Node) -> Node | None:
    """Return the node that ``node`` is a view of, None if it has memory of its own."""
    if node.op != "call_function":
        return None
    target = node.target
    if target is operator.getitem:
        parts = node.args[0]
        return parts if isinstance(parts, Node) and viewed(parts) is not None else None
    # `is_view` says that the first argument is passed on; every other one has to be a constant
    if not isinstance(target, OpOverload) or not target.is_view or len(node.all_input_nodes) != 1:
        return None
    base = node.args[0] if node.args else None
    return base if isinstance(base, Node) else None


def read_from_storage(graph: GraphModule) -> None:
    """Let every as_strided of a view read what that is a view of, in place.

    Its offset counts from the beginning of the storage, which may lie before the view, and the view may have gaps.
    """
    for node in graph.graph.nodes:
        if node.target in AS_STRIDED:
            source, size, stride, *rest = node.args
            root = _root(source)
            if root is not source:
                offset = rest[0] if rest else node.kwargs.get("storage_offset")
                offset = source.meta["val"].storage_offset() if offset is None else offset
                node.args, node.kwargs = (root, size, stride, offset), {}


def _root(node: Node) -> Node:
    """Return what ``node`` is at last a view of, as long as that has the same storage and kind of elements."""
    base = viewed(node)
    while base is not None:
        parts = base.meta.get("val")
        if isinstance(parts, torch.Tensor):
            if _elements(parts) != _elements(node.meta["val"]):
                break
            node = base
        base = viewed(base)
    return node


def _elements(tensor: torch.Tensor) -> tuple[int, torch.dtype, bool, bool]:
    storage = tensor.untyped_storage()._cdata  # noqa: SLF001 - a storage's identity
    return storage, tensor.dtype, tensor.is_conj(), tensor.is_neg()
