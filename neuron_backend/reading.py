"""While programs are recorded no tensor holds a computed value: what asks for one is refused, not misled."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


COPY: Final = "a copy to the CPU"

_device = torch.ops.neuron_device


class ValueNeeded(RuntimeError):  # noqa: N818 - says what it is
    """The code to be prewarmed asks for a value, or a shape that depends on values, and nothing is computed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} asks for a value, and a prewarm computes none: leave it out of the entry point "
            "(no item(), cpu() or print(), no branch on a tensor, no nonzero())"
        )


def _in_a_custom_operator() -> bool:
    """Whether the kernel of one of the user's operators asks (`torch.library.custom_op`).

    That may compute on the host what it gives back to the device; what the rest of the code sees of it is promised by
    its ``register_fake`` to depend on no value.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `warnings` does itself
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch._library.custom_ops":
            return True
        frame = frame.f_back
    return False


@contextmanager
def values_refused() -> Iterator[None]:
    """Let ``item()``, copies to the host and all that is made of them raise `ValueNeeded` for tensors of the device.

    Kernels of custom operators may copy: they get zeros.
    """

    def no_item(_tensor: torch.Tensor) -> NoReturn:
        raise ValueNeeded("aten::_local_scalar_dense")

    def copy_from(source: torch.Tensor, destination: torch.Tensor, _non_blocking: bool = False) -> torch.Tensor:
        if destination.device.type == "cpu" and not _in_a_custom_operator():
            raise ValueNeeded(COPY)
        # what comes from the host has values, and may be kept for the job
        _device.as_cpu(destination).copy_(_device.as_cpu(source))
        return destination

    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    kernels = {"_local_scalar_dense": no_item, "_copy_from": copy_from}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the override that is meant here
        for name, kernel in kernels.items():
            library.impl(name, kernel, "PrivateUse1", allow_override=True)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001 - the device's own kernel is in force again
