"""The account of operators that ran on the CPU because they cannot be lowered. Imports neither torch nor jaxlib."""

from __future__ import annotations

import threading
import warnings
from collections import Counter

from neuron_backend.user_code import user_level

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
