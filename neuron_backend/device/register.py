"""Register the device with torch: library, name, module ``torch.neuron``, and the kernels of the eager path.

Runs inside ``import torch``: it must stay light, and must not touch parts of torch that are imported later.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch.utils import backend_registration

from client.errors import ConfigurationError
from neuron_backend.device import crossing, module, moving
from neuron_backend.device.build import COMMAND
from neuron_backend.eager import kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEVICE = "neuron"
DEVICES = "NEURON_BACKEND_DEVICES"
MAX_DEVICES = 64


def register(library: Path) -> None:
    """Load ``library`` and make ``device="neuron"`` known to torch; once per process.

    Raises `ConfigurationError` if ``NEURON_BACKEND_DEVICES`` means nothing, OSError if the library cannot be loaded.
    """
    text = os.environ.get(DEVICES, "")
    _check_devices(text if text.strip() else "1")
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise OSError(f"{error}; `{COMMAND}` builds it anew") from error
    backend_registration.rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, module)  # type: ignore[no-untyped-call]  # noqa: SLF001 - as torch documents it
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    kernels.register()
    moving.register()
    crossing.register()
    _print_from_the_host()


def _check_devices(text: str) -> None:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_DEVICES):
        raise ConfigurationError(
            f"{DEVICES}={text!r} is no number of devices: expected 1 to {MAX_DEVICES}, or leave it unset for 1"
        )


def _print_from_the_host() -> None:
    """Let torch format a tensor's values from a copy on the CPU, as it does for its own compiled devices.

    Formatting takes a dozen small operators on slices; each would be compiled for the sake of a ``print``. torch has no
    setting for that, only a list of device names.
    """
    formatted: Callable[[torch.Tensor, int], str] = torch._tensor_str._tensor_str  # noqa: SLF001 - no public way

    def from_the_host(tensor: torch.Tensor, indent: int) -> str:
        return formatted(tensor.cpu() if tensor.device.type == DEVICE else tensor, indent)

    torch._tensor_str._tensor_str = from_the_host  # noqa: SLF001
