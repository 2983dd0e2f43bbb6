"""The two files that a run leaves behind: the summary (one per job) and the record of the keys it used (the plan)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from client.errors import WireError
from client.node.tree import temporary_beside
from client.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from client.wire import Entry

RECORD_SCHEMA = 1
LOCK_WAIT = 5.0
_POLL = 0.02


def record_line(entry: Entry, label: str) -> bytes:
    """Return the line of ``NEURON_CACHE_RECORD`` that says that a run used ``entry``."""
    value = {
        "schema": RECORD_SCHEMA,
        "project": entry.project,
        "kind": str(entry.kind),
        "key": entry.key,
        "label": label,
        "compile_seconds": entry.compile_seconds,
    }
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def append_record(path: Path, line: bytes) -> None:
    """Append one line in one write: whole beside those of other processes, and kept however the job ends.

    Raises `OSError`.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def add_to_summary(
    path: Path,
    statistics: Statistics,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Add ``statistics`` to the summary at ``path``, which is made if need be, and replace it by a rename.

    Processes that name one file take turns. Raises `OSError`, and `WireError` if ``path`` holds something else: that
    is then left as it is.
    """
    with _turn(path, clock, sleep):
        try:
            total = Statistics.from_json(json.loads(path.read_bytes())).plus(statistics)
        except FileNotFoundError:
            total = statistics
        except ValueError as error:
            raise WireError(f"{path} holds no summary ({error}): name another file, or remove it") from error
        temporary = temporary_beside(path)
        try:
            temporary.write_bytes(json.dumps(total.to_json(), indent=1).encode() + b"\n")
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def _turn(path: Path, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[None]:
    """Hold the kernel's lock on ``<path>.lock``; go on without it after `LOCK_WAIT`, or where there are no locks."""
    descriptor = os.open(_lock_beside(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = clock() + LOCK_WAIT
        with suppress(OSError):
            while not _locked(descriptor) and clock() < deadline:
                sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


def _lock_beside(path: Path) -> Path:
    """Return ``<path>.lock``, or a name that all processes make of it alike where that one would be too long."""
    name = f"{path.name}.lock"
    if len(os.fsencode(name)) > os.pathconf(path.parent, "PC_NAME_MAX"):
        name = f".neff-cache-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}.lock"
    return path.with_name(name)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
