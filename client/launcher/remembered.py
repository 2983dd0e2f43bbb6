"""What is remembered of a compiler, for as long as its file stays the same one.

Asking a compiler costs a start of it, seconds on a real host, so its version is kept in the node tier:
``<tier>/v1/.compilers/<digest of the path>.json``. It holds for one path, size, time and inode, and for the variables
by which a Python program could find another package under the same name.
"""

from __future__ import annotations

import json
import os

from client.launcher.digest import sha256

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from client.launcher.tier import Tier

FOLDER = ".compilers"  # no project's name begins with a dot
_SEARCH = ("PYTHONPATH", "PYTHONHOME")
_LOOKED_UP = (*_SEARCH, "PATH", "VIRTUAL_ENV")
"""What decides besides where the program's first line looks its interpreter up (``#!/usr/bin/env python3``)."""


class Memory:
    """What is kept of one compiler: where, and what must still hold for it (``stamp``)."""

    __slots__ = ("name", "stamp", "tier")

    def __init__(self, program: str, environ: Mapping[str, str], tier: Tier | None) -> None:
        self.tier = tier
        self.name = sha256(os.fsencode(program))[:32] + ".json"
        self.stamp = _stamp(program, environ)

    def recall(self) -> str | None:
        """Return the version, or None if it is not known."""
        if self.tier is None:
            return None
        try:
            kept = json.loads(self.tier.read((FOLDER,), (self.name,))[0])
            return str(kept["version"]) if kept["stamp"] == self.stamp else None
        except Exception:  # noqa: BLE001 - not there, not trusted, not whole: the compiler is asked
            return None


def _stamp(program: str, environ: Mapping[str, str]) -> dict[str, Any]:
    status = os.stat(program)  # noqa: PTH116 - pathlib costs 3 ms
    with open(program, "rb") as file:  # noqa: PTH123
        first = file.readline(256)
    names = _LOOKED_UP if first.startswith(b"#!") and b"/env" in first else _SEARCH
    return {
        "path": program,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "inode": status.st_ino,
        "environment": {name: environ[name] for name in names if name in environ},
    }
