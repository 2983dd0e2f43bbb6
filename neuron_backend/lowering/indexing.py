"""Reading elements by computed indices. An index out of range, an error on the CPU, is clamped by StableHLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from neuron_backend.lowering.addressing import coordinates, gather, take
from neuron_backend.lowering.errors import Refused
from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import concatenate, conform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


class Advanced:
    """Indices of ``x[indices]``, of integer tensors and None, in the form that gather and scatter want.

    ``axes`` are the indexed dimensions, ``columns`` is [index shape..., len(axes)], and ``position`` says where
    the index shape stands in the result: at the first indexed dimension if all stand together, else in front.
    """

    def __init__(self, _call: Call, x: Array, indices: Sequence[Array | None]) -> None:
        given = {axis: index for axis, index in enumerate(indices) if index is not None}
        if any(is_mask(index) for index in given.values()):
            raise Refused("the result of a boolean index has a shape that depends on values")
        self.axes = list(given)
        self.shape = np.broadcast_shapes(*(index.shape for index in given.values()))
        columns = [
            from_the_end(conform(index, torch.int64, self.shape), x.shape[axis]) for axis, index in given.items()
        ]
        expanded = [column.reshape((*self.shape, 1)) for column in columns]
        self.columns = concatenate(expanded, len(self.shape))
        together = self.axes == list(range(self.axes[0], self.axes[-1] + 1))
        self.position = self.axes[0] if together else 0


def is_mask(index: Array) -> bool:
    """Whether an index says for each place if it is meant: a boolean one, or uint8 as of old."""
    return index.dtype in {torch.bool, torch.uint8}


def from_the_end(index: Array, length: int) -> Array:
    """Count negative indices from the end."""
    return (index < 0).where(index + length, index)


@lowers("aten.embedding.default")
def _embedding(_call: Call, weight: Array, indices: Array, *_backward_only: Any) -> Array:
    return take(weight, indices, 0)


@lowers("aten.index_select.default")
def _index_select(call: Call, x: Array, dim: int, index: Array) -> Array:
    vector = x.reshape(x.shape or (1,))
    return take(vector, index.reshape((index.size,)), dim % vector.rank).reshape(call.out.shape)


@lowers("aten.gather.default")
def _gather(call: Call, x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    del sparse_grad
    vector, places = x.reshape(x.shape or (1,)), index.reshape(index.shape or (1,))
    axes = list(range(vector.rank))
    return gather(vector, coordinates(places, dim % vector.rank), axes, 0).reshape(call.out.shape)


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _index(call: Call, x: Array, indices: Sequence[Array | None]) -> Array:
    advanced = Advanced(call, x, indices)
    return gather(x, advanced.columns, advanced.axes, advanced.position)
