"""How much memory there is: the machine's, or what the control group that we run in may use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARE = 0.8
"""Share of that memory which compilers may take together; the rest is for the job itself and the file cache."""


def most_held() -> int:
    """Return the bytes of the largest file that may be read into memory whole: half of what there is, if that is known.

    A file's length is somebody else's word: one without content takes no disk, and all of the memory.
    """
    limit = memory_limit()
    return sys.maxsize if limit is None else limit // 2


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process may use, or None if nobody says so.

    That is the smallest of the machine's memory and the ``memory.max`` (control groups v2) of our own group and of
    those above it. ``root`` is where ``proc`` and ``sys`` are found.
    """
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split()[0].isdigit():
            yield int(value.split()[0]) << 10
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        if number != "0":
            continue  # version 1
        mounted = root / "sys/fs/cgroup"
        group = mounted / rest.partition(":")[2].lstrip("/")
        for level in (group, *group.parents):
            for value in _lines(level / "memory.max"):
                if value.isdigit():  # else "max"
                    yield int(value)
            if level == mounted:
                break


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, ValueError):
        return []
