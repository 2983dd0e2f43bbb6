"""Streams and events of the device, by the names that users know from others.

Work on the device has ended when its call returns. So a device has one stream, everything is in order on it, and an
event is complete as soon as it is recorded; the time between two is the time that passed on the host.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def Stream(device: torch.device | str | int | None = None, *, priority: int = 0) -> torch.Stream:  # noqa: N802 - torch calls it by this name
    """Return the stream of ``device``; there is no other, whatever its ``priority``."""
    return torch.Stream(device=device if device is not None else "neuron", priority=priority)


def Event(*, enable_timing: bool = False, blocking: bool = False) -> torch.Event:  # noqa: N802 - as above
    """Return an event of the current device."""
    return torch.Event(device="neuron", enable_timing=enable_timing, blocking=blocking)


@contextmanager
def stream(chosen: torch.Stream | None) -> Iterator[None]:
    """Make ``chosen`` the current stream of its device, and that device current; None changes nothing."""
    if chosen is None:
        yield
        return
    with chosen:
        yield


def set_stream(chosen: torch.Stream | None) -> None:
    """Make ``chosen`` the current stream, and its device current; None changes nothing."""
    if chosen is not None:
        torch.accelerator.set_stream(chosen)
