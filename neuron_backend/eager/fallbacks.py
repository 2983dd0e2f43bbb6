"""The account of operators that ran on the CPU because they cannot be lowered. Imports neither torch nor jaxlib."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_lock = threading.Lock()
_ran: Counter[str] = Counter()
_warned: set[str] = set()


def get_fallback_ops() -> dict[str, int]:
    """Return the operators that ran on the CPU, by name, with how often they did; random number generators included."""
    with _lock:
        return dict(sorted(_ran.items()))


def clear_fallback_ops() -> None:
    """Forget which operators ran on the CPU, and that they were warned of."""
    with _lock:
        _ran.clear()
        _warned.clear()


def record_fallback(operator: str, reason: str, *, warn: bool = True) -> None:
    """Count one run of ``operator`` on the CPU, and warn of it if this is its first; ``reason`` is a clause."""
    with _lock:
        _ran[operator] += 1
        new = warn and operator not in _warned
        if new:
            _warned.add(operator)
    if new:
        warnings.warn(
            f"operator {operator} runs on the CPU, not on neuron: {reason}", UserWarning, stacklevel=user_level()
        )


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
