"""Sizes and times as people read them."""

from __future__ import annotations

_STEP = 1024
_MINUTE = 60
_HOUR = 3600
_DAY = 24 * _HOUR


def size_text(size: float) -> str:
    """Return bytes as ``512 B``, ``1.5 MiB``, ``20.0 GiB``."""
    if size < _STEP:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= _STEP
        if size < _STEP:
            return f"{size:.1f} {unit}"
    return f"{size / _STEP:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """Return a duration as ``1.5 s``, ``12 min``, ``3.4 h``."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h"


def ago_text(seconds: float) -> str:
    """Return how long ago something was: ``12 s ago``, ``3 h ago``, ``8 d ago``; ``in 3 h`` if it is yet to come."""
    size = abs(seconds)
    lengths = (("d", _DAY), ("h", _HOUR), ("min", _MINUTE), ("s", 1))
    unit, length = next((each for each in lengths if size >= 2 * each[1]), lengths[-1])
    text = f"{size // length:.0f} {unit}"
    return f"{text} ago" if seconds >= 0 else f"in {text}"
