"""Where the user's own code is, seen from ours: what a warning should point at. Imports neither torch nor jaxlib."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def user_level() -> int:
    """Return the ``stacklevel`` at which a warning of our caller's points at the user's own line."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `warnings` does itself
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in {
        "neuron_backend",
        "torch",
    }:
        frame = frame.f_back
        level += 1
    return level
