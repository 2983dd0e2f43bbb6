"""Operators that give the same elements another shape or order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuron_backend.lowering.registry import lowers
from neuron_backend.lowering.sources import concatenate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuron_backend.lowering.array import Array
    from neuron_backend.lowering.registry import Call


@lowers(
    "aten._reshape_alias.default",
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.reshape.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze_copy.default",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
    "aten.unsqueeze.default",
    "aten.unsqueeze_copy.default",
    "aten.view.default",
    "aten.view_copy.default",
)
def _reshape(call: Call, x: Array, *_arguments: Any) -> Array:
    return x.reshape(call.out.shape)


@lowers("aten.permute.default", "aten.permute_copy.default", "prims.transpose.default")
def _permute(_call: Call, x: Array, order: Sequence[int]) -> Array:
    return x.transpose([axis % x.rank for axis in order])


@lowers("aten.transpose.int", "aten.transpose_copy.int")
def _transpose(_call: Call, x: Array, first: int, second: int) -> Array:
    if not x.rank:
        return x
    order = list(range(x.rank))
    order[first], order[second] = order[second], order[first]
    return x.transpose(order)


@lowers("aten.t.default", "aten.t_copy.default")
def _matrix_transpose(_call: Call, x: Array) -> Array:
    return x.transpose(range(x.rank)[::-1])


@lowers("aten.expand.default", "aten.expand_copy.default")
def _expand(call: Call, x: Array, _size: Sequence[int], **_options: Any) -> Array:
    return x.broadcast(call.out.shape)


@lowers("prims.broadcast_in_dim.default")
def _broadcast_in_dim(_call: Call, x: Array, shape: Sequence[int], axes: Sequence[int]) -> Array:
    return x.spread(shape, axes)


@lowers("aten.repeat.default")
def _repeat(call: Call, x: Array, repeats: Sequence[int]) -> Array:
    """Interleave each dimension with a new one of the repeats, then fold the two together."""
    sizes = (1,) * (len(repeats) - x.rank) + x.shape
    pairs = [part for count, size in zip(repeats, sizes, strict=True) for part in (count, size)]
    return x.reshape(sizes).spread(pairs, range(1, len(pairs), 2)).reshape(call.out.shape)


@lowers("aten.cat.default")
def _concatenate(call: Call, tensors: Sequence[Array], dim: int = 0) -> Array:
    """Join; empty tensors of shape [0] are skipped whatever the others' rank, PyTorch's oldest exception."""
    parts = [each.to(call.out.dtype) for each in tensors if each.shape != (0,)]
    return concatenate(parts, dim % len(call.out.shape))


@lowers("aten.flip.default", "prims.rev.default")
def _flip(_call: Call, x: Array, dims: Sequence[int]) -> Array:
    return x.reverse([axis % x.rank for axis in dims]) if x.rank else x


@lowers("aten.constant_pad_nd.default")
def _constant_pad(_call: Call, x: Array, pad: Sequence[int], value: float = 0) -> Array:
    low, high = [0] * x.rank, [0] * x.rank
    for position in range(len(pad) // 2):
        low[-1 - position], high[-1 - position] = pad[2 * position], pad[2 * position + 1]
    return x.pad(low, high, value)
