"""Where the user's own code is, seen from ours: what a warning should point at. Imports neither torch nor jaxlib."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def user_level() -> int:
    """Return the ``stacklevel`` at which a warning of our caller's points at the user's own line."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `warnings` does itself
    level = 1
    while frame is not None and _ours(frame):
        frame = frame.f_back
        level += 1
    return level


def user_line() -> str:
    """Return ``file:line: code`` of the user's own line that led here; empty in a thread that none did."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    while frame is not None:
        file = frame.f_code.co_filename
        if not _ours(frame) and Path(file).is_file():  # code that torch made has none
            code = linecache.getline(file, frame.f_lineno).strip()
            return f"{file}:{frame.f_lineno}: {code}" if code else f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in {"neuron_backend", "torch"}
