"""While programs are recorded no tensor holds a computed value: what asks for one is refused, not misled."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class ValueNeeded(RuntimeError):  # noqa: N818 - says what it is
    """The code to be prewarmed asks for a value, or a shape that depends on values, and nothing is computed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} asks for a value, and a prewarm computes none: leave it out of the entry point "
            "(no item(), no branch on a tensor, no nonzero())"
        )


@contextmanager
def values_refused() -> Iterator[None]:
    """Let ``item()``, and all that is made of it, raise `ValueNeeded` for tensors of the device."""

    def refuse(_tensor: torch.Tensor) -> NoReturn:
        raise ValueNeeded("aten::_local_scalar_dense")

    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the override that is meant here
        library.impl("_local_scalar_dense", refuse, "PrivateUse1", allow_override=True)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001 - the device's own kernel is in force again
