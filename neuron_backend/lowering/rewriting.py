"""Operators in terms of simpler ones, where PyTorch has no decomposition of its own and needs no other formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_REWRITES: dict[str, Callable[..., Any]] = {}


def rewrites(*operators: str) -> Callable[[_Function], _Function]:
    """Register the decorated function as the decomposition of ``operators``, named as PyTorch prints them.

    It has the operator's own signature and sees fake tensors, as any function that is traced: no value decides
    what it does. Shapes of results that only our other rewrites read need not be those of PyTorch's kernels.
    """

    def register(function: _Function) -> _Function:
        for operator in operators:
            if operator in _REWRITES:
                raise RuntimeError(f"{operator} has two rewrites")
            _REWRITES[operator] = function
        return function

    return register


def rewriting_table() -> dict[Any, Callable[..., Any]]:
    """Return all of them by overload."""
    return {_overload(name): function for name, function in _REWRITES.items()}


def _overload(name: str) -> Any:
    namespace, operator, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), overload)
