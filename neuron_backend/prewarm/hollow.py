"""Tensors and modules that have shape, dtype and place, and no content: what programs are captured with.

They are tensors of the device as any other, so that every operator and graph takes the path that it takes in a job.
Their memory is asked of the system zeroed and never touched: it costs addresses and no pages, whatever the weights.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree

if TYPE_CHECKING:
    from collections.abc import Sequence


def blank(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous host tensor of zeros that no page of memory stands behind yet."""
    count = 1
    for size in shape:
        count *= size
    # calloc: large blocks come from the system as they are, torch.zeros would write them
    memory = torch.from_numpy(np.zeros(count * dtype.itemsize, dtype=np.uint8))
    return memory.view(dtype).reshape(tuple(shape)) if count else torch.empty(tuple(shape), dtype=dtype, device="cpu")


def hollow(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of device neuron with the shape, strides and dtype of ``tensor``, which may be fake or on meta.

    A tensor of device neuron keeps its index; what is elsewhere comes to device 0. A parameter stays one.
    """
    index = (tensor.device.index or 0) if tensor.device.type == "neuron" else 0
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if tensor.numel() else 0
    with torch.no_grad():
        memory = torch.ops.neuron_device.from_cpu(blank((reach,), tensor.dtype), index)
        filled: torch.Tensor = memory.as_strided(shape, strides)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(filled, requires_grad=tensor.requires_grad)
    return filled.requires_grad_(tensor.requires_grad)


def hollow_inputs(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments with every tensor in them hollow, inside of containers too; all else as it stands."""
    leaves, structure = _pytree.tree_flatten(tuple(inputs))
    made = [hollow(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    result: tuple[Any, ...] = _pytree.tree_unflatten(made, structure)
    return result


def hollow_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of ``module`` with hollow parameters and buffers, tied ones still tied; leaves the original."""
    made: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        if id(tensor) not in made:
            made[id(tensor)] = hollow(tensor)
    return copy.deepcopy(module, made)
