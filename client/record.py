"""The two files that a run leaves behind: the summary (one per job) and the record of the keys it used (the plan)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from client.errors import WireError
from client.node.tree import temporary_beside
from client.stalls import folder_of
from client.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from client.wire import Entry

RECORD_SCHEMA = 1
LOCK_WAIT = 5.0
MAX_SUMMARY = 256 << 20
"""Bytes of the largest summary that is read: three million keys."""
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

    Raises `OSError`, also for a pipe that nobody reads, and if the file system does not answer.
    """

    def append() -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    folder_of(path).reach(append)


def look_ahead(path: Path) -> None:
    """Find out early whether a file system answers that is written to at exit, when no thread can be started any more.

    What is wrong is said then, not now.
    """
    with suppress(OSError):
        folder_of(path).reach(lambda: None)


def add_to_summary(
    path: Path,
    statistics: Statistics,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Add ``statistics`` to the summary at ``path``, which is made if need be, and replace it by a rename.

    Processes that name one file take turns. Raises `OSError`, also if the file system does not answer, and `WireError`
    if ``path`` holds something else: that is then left as it is.
    """
    folder_of(path).reach(lambda: _add(path, statistics, clock, sleep))


def _add(path: Path, statistics: Statistics, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    with _turn(path, clock, sleep):
        try:
            total = Statistics.from_json(json.loads(_read(path))).plus(statistics)
        except FileNotFoundError:
            total = statistics
        except (ValueError, RecursionError) as error:
            raise WireError(f"{path} holds no summary ({error}): name another file, or remove it") from error
        temporary = temporary_beside(path)
        try:
            temporary.write_bytes(json.dumps(total.to_json(), indent=1).encode() + b"\n")
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _read(path: Path) -> bytes:
    """Return what is there; raises `ValueError` for what cannot be a summary, such as a pipe or a disk's image."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if found.st_size > MAX_SUMMARY:
            raise ValueError(f"it has {found.st_size} bytes")
        return file.read(found.st_size + 1)


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
    # not os.pathconf, which lets no other thread run while it waits, for ever on a file system that is gone
    if len(os.fsencode(name)) > os.statvfs(path.parent).f_namemax:
        name = f".neff-cache-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}.lock"
    return path.with_name(name)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
