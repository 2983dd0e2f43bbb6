"""The seam between the backends and whatever runs a NEFF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from neuron_backend.module import Signature


class Executable(Protocol):
    """A loaded program. Safe to call from several threads."""

    @property
    def signature(self) -> Signature:
        """What it takes and gives, as the module says, or `neuron_backend.module.Module.called_as`."""

    @property
    def direct(self) -> tuple[object, ...] | None:
        """What the device library needs to run it without this class (`neuron_backend.runtimes.xla_client.Direct`).

        None if it cannot be run so.
        """

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on contiguous host tensors and return fresh contiguous host tensors.

        Raises ValueError, before anything runs, if the number, dtype, shape or strides of ``inputs`` are not the
        signature's: XLA's CPU client itself looks at sizes in bytes only.
        """


class Runtime(Protocol):
    """Loads NEFFs. Refuses to work in a child that was forked after its first use."""

    def load(self, neff: bytes, signature: Signature) -> Executable:
        """Load a validated NEFF; raises `client.errors.NeffError` if it is not one for this runtime and host."""
