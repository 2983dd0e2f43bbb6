"""The kernels by which torch reaches the eager path; light, because they are registered inside ``import torch``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# A Library takes its kernels back when it is collected.
_libraries: list[torch.library.Library] = []

aten = torch.ops.aten


def register() -> None:
    """Register the boxed fallback, and by name the operators whose composite kernel would win over it."""
    fallback = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    fallback.fallback(_run, "PrivateUse1")  # type: ignore[no-untyped-call]
    named = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for operator in (
        aten.convolution_overrideable.default,
        aten.convolution_backward_overrideable.default,
    ):
        named.impl(operator, _named(operator), "PrivateUse1")  # type: ignore[no-untyped-call]
    _libraries.extend((fallback, named))


@cache
def _dispatch() -> Callable[..., Any]:
    from neuron_backend.eager.dispatch import dispatch  # noqa: PLC0415 - the first operator pays for it, not the import

    return dispatch


def _run(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    return _dispatch()(operator, args, kwargs)


def _named(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _dispatch()(operator, args, kwargs)

    return kernel
