"""Bounded waiting, and what is known of processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HANG_SECONDS = 90.0
"""More than anything takes on a machine with ten times the work that it has processors for."""


def wait_until(condition: Callable[[], object], what: str, seconds: float = HANG_SECONDS) -> None:
    """Return once ``condition`` holds; fail after ``seconds``, which are a limit for hangs and no measure of speed."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process lives; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(module: str, parent: int, *, below: str = "/") -> list[int]:
    """Return the living children of ``parent`` that run ``python -m module`` with a last argument ``below``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        ours = module.encode() in command and command[-2].startswith(below.encode()) and above == parent
        if ours and is_running(int(entry.name)):
            found.append(int(entry.name))
    return found
