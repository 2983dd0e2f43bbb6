"""Decompositions whose results lie in memory as those of the operator do.

A compiled graph promises the strides that shape inference gives its outputs. Where an operator is taken apart, that is
what its last part gives, which need not be what torch's kernel of the whole gives.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from neuron_backend.inferred_strides import as_on_the_cpu
from neuron_backend.layout import Layout, lying_in
from neuron_backend.torch_private import disable_proxy_modes_tracing, tree_leaves, tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable


def lying_alike(operator: torch._ops.OpOverload, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``decomposition`` with results whose strides are those of ``operator``.

    Only looks where something lies in another order than the plain one: elsewhere the two agree.
    """
    if operator._schema.is_mutable:  # noqa: SLF001 - there is no public way to ask
        return decomposition

    @functools.wraps(decomposition)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        results = decomposition(*args, **kwargs)
        if results is NotImplemented or all(_plain(each) for each in tree_leaves((args, kwargs, results))):
            return results
        try:
            with disable_proxy_modes_tracing():
                whole = as_on_the_cpu(operator, args, kwargs)
        except Exception:  # noqa: BLE001 - torch infers nothing for it, which is why it is taken apart
            return results
        wanted = iter([each for each in tree_leaves(whole) if isinstance(each, torch.Tensor)])
        return tree_map_only(torch.Tensor, lambda result: _laid(result, next(wanted)), results)

    return decomposed


def _plain(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.is_contiguous()


def _laid(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return ``result``, copied unless it lies as ``like`` does; ``like`` may be anything that has its shape."""
    if like.shape != result.shape or _significant(like) == _significant(result) or not Layout.of(like).dense:
        return result
    return lying_in(result, Layout.of(like).order)


def _significant(tensor: torch.Tensor) -> list[int]:
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]
