"""How often runs were passed to the real compiler, and why: one line each in ``<tier>/v1/.launcher/passed.jsonl``."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from client.launcher.tier import Tier
from client.node.permissions import UntrustedError
from client.node.place import open_files
from client.node.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = ".launcher"  # no project's name begins with a dot
FILE = "passed.jsonl"
MAX_BYTES = 256 << 10
"""Bytes of the file: when it is full it begins anew, and the last full one is kept beside it."""
_MAX_REASON = 200


def count_passed(environ: Mapping[str, str], why: str) -> None:
    """Note that a compile was passed on; never raises for what the file system does."""
    line = json.dumps({"time": round(time.time(), 3), "why": why[:_MAX_REASON]}).encode() + b"\n"
    with suppress(OSError, ValueError, UntrustedError):
        tree = _tree(environ)
        files = tree.files
        tree.claim()
        with tree.directory(FOLDER, make=True) as (directory, trust):
            descriptor = tree.open_lock_file(FILE, directory, trust)
            try:
                if files.status(descriptor).st_size > MAX_BYTES:
                    files.rename(FILE, f"{FILE}.1", directory)
                    files.close(descriptor)
                    descriptor = tree.open_lock_file(FILE, directory, trust)
                _append(descriptor, line)
            finally:
                files.close(descriptor)


def read_passed(environ: Mapping[str, str]) -> dict[str, int]:
    """Return how many compiles were passed on lately, by reason, the most frequent first."""
    counts: dict[str, int] = {}
    for name in (f"{FILE}.1", FILE):
        with suppress(OSError, ValueError, UntrustedError):
            for line in Tier(environ).read((FOLDER,), (name,))[0].splitlines():
                why = str(json.loads(line)["why"])
                counts[why] = counts.get(why, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _tree(environ: Mapping[str, str]) -> Tree:
    tier = Tier(environ)
    root = Path(tier.root)
    return Tree(root, shared=tier.shared, files=open_files(root))


def _append(descriptor: int, line: bytes) -> None:
    """Write at the end in one call: whole beside the lines of other processes."""
    import fcntl  # noqa: PLC0415 - only here

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    os.write(descriptor, line)
