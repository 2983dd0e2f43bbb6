"""Runs that are not shared: the real compiler takes this process's place.

Nothing stands between it and its caller then: streams, exit status and signals are its own.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

DEPTH = "NEURON_CACHE_LAUNCHER_DEPTH"
"""How many launchers stand above a process: set for the real compiler, and one more each time."""
MOST_DEPTH = 8
PREFIX = "neff-cache: "
FAILED = 70
"""The exit status of ``neuronx-cc`` for nearly every failure, which its callers know."""
NOT_FOUND = 127
CANNOT_START = 126


class NotShared(Exception):  # noqa: N818 - reads as the decision it carries
    """This run is passed to the real compiler as it stands; the message is the reason, a few words."""


def depth(environ: Mapping[str, str]) -> int:
    """Return how many launchers stand above this process."""
    text = environ.get(DEPTH, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def compiler_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment, in which a launcher knows that the real compiler stands above it."""
    return {**environ, DEPTH: str(depth(environ) + 1)}


def become(program: str, words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Let the real compiler take this process's place; does not return."""
    import signal  # noqa: PLC0415 - a hit never needs it

    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and an ignored signal stays ignored beyond exec
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(program, [program, *words], compiler_environment(environ))  # noqa: S606 - no shell: that is the point
    except OSError as error:
        refuse(f"{program} cannot be started ({error.strerror}): set NEURON_CACHE_COMPILER to a compiler", CANNOT_START)


def refuse(message: str, status: int = FAILED) -> NoReturn:
    """Say one sentence and end."""
    os.write(2, f"{PREFIX}{message}\n".encode("utf-8", "backslashreplace"))
    os._exit(status)
