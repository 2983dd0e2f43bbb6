"""What a compiler's run means: its exit status alone never tells a lasting failure from one that will pass.

``neuronx-cc`` ends with 70 for real diagnoses, for memory that ran out, for files that are not there and for races.
Only a diagnosis (``NCC_E…``) is the program's own fault; it alone may be remembered.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from client.errors import Failure, FailureClass, NeffError, NothingMade

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME: Final = "neuronx-cc"

LOG_LIMIT: Final = 1 << 20
"""Bytes of the compiler's log that are kept: the last ones, where it says what went wrong."""

_MOST_EXIT_STATUS = 128
_DIAGNOSIS = re.compile(r"\bNCC_E[A-Z]*[0-9]+")
_RESOURCE = re.compile(
    r"\[F137\]|out of memory|cannot allocate memory|bad_alloc|MemoryError|no space left on device|\bENOSPC\b"
    r"|\bSIG(?:KILL|TERM|SEGV|ABRT|BUS|INT)\b|signal [0-9]+|^Killed$",
    re.IGNORECASE | re.MULTILINE,
)
# Files that are missing or unreadable are this host's, not the program's, fault; NCC_EVRF059 is a missing kernel file.
_FILES = re.compile(
    r"NCC_EVRF059|no such file|FileNotFoundError|permission denied|too many open files|stale file handle"
    r"|input/output error|read-only file system",
    re.IGNORECASE,
)


def read_tail(log: Path) -> str:
    """Return the last `LOG_LIMIT` bytes of a log as text; of a file that is not there, nothing."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - LOG_LIMIT, 0))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def read_neff(output: Path, said: str, module: str, command: Sequence[str]) -> bytes:
    """Return the compiler's output if it is one whole NEFF: exit status 0 alone is no success.

    Raises `NothingMade`, which names ``module`` and the ``command`` line; ``said`` is the compiler's log.
    """
    from client import neff  # noqa: PLC0415 - the rest of this module needs no tar reader, and every job has it

    try:
        data = output.read_bytes()
        neff.validate(data)
    except OSError as error:
        text = f"{NAME} ended with exit status 0, but left no readable output file ({error.strerror})"
    except NeffError as error:
        text = f"{NAME} ended with exit status 0, but its output is no whole NEFF: {error}"
    else:
        return data
    import shlex  # noqa: PLC0415 - only this failure needs it

    text = f"{text}; it was to compile {module} by `{shlex.join(command)}`"
    raise NothingMade(Failure("resource" if _RESOURCE.search(said) else "transient", text, said))


def failure_of(returncode: int, said: str) -> Failure:
    """Return what a run means that ended with ``returncode`` (negative for a signal) and the log ``said``."""
    ending = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with exit status {returncode}"
    found = _DIAGNOSIS.search(said)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = next((line for line in lines if found is not None and found[0] in line), lines[-1] if lines else "")
    text = f"{NAME} {ending}: {telling[:500]}" if telling else f"{NAME} {ending}"
    failure_class: FailureClass = "transient"
    if returncode < 0 or returncode > _MOST_EXIT_STATUS or _RESOURCE.search(said):
        failure_class = "resource"
    elif found is not None and not _FILES.search(said):
        failure_class = "diagnosis"
    return Failure(failure_class, text, said)


def failure_to_start(error: OSError) -> Failure:
    """Return what it means that the compiler could not be started, or its files not be written."""
    failure_class: FailureClass = "resource" if _RESOURCE.search(str(error)) else "transient"
    return Failure(failure_class, f"{NAME} cannot be started: {error}")


def stopped(limit: float, said: str) -> Failure:
    """Return what it means that the compiler ran for ``limit`` seconds and was killed."""
    text = f"{NAME} was stopped: it took longer than {limit:g} s (NEURON_CACHE_COMPILE_LIMIT)"
    return Failure("resource", text, said)


MANY_ATTEMPTS = 3
"""After so many attempts at one key in a row that ended without a program, the next one waits."""
_FIRST_REST, _LONGEST_REST = 60.0, 3600.0


def rest_seconds(attempts: int) -> float:
    """Return for how long a key rests after the last of ``attempts`` that failed: 60 s after three, at most an hour.

    Each attempt after the third doubles it: what takes its host's memory along would else do so on every host in turn.
    """
    if attempts < MANY_ATTEMPTS:
        return 0.0
    return float(min(_FIRST_REST * 2.0 ** min(attempts - MANY_ATTEMPTS, 32), _LONGEST_REST))


def ran_out(host: str, pid: int, ttl_seconds: float) -> Failure:
    """Return the failure of a holder whose lease ran out: it may have taken its container along, or lost its way."""
    text = (
        f"the process that compiled it ({host}, process {pid}) was not heard of for {ttl_seconds:.0f} s: it, its "
        "container or its machine is gone, or cannot reach the cache; a compile that needs more memory than there is "
        "ends so"
    )
    return Failure("resource", text)
