"""Limits for what has none of its own: it runs on a thread, which is left behind when its time is up.

A network file system that hangs, or a library's own retries, cannot be cut short in any other way.
"""

from __future__ import annotations

import threading
import time
from contextvars import copy_context
from typing import TYPE_CHECKING, Generic, TypeVar

from client.errors import Unreachable
from client.transports.base import TooSlow
from client.transports.limits import DEFAULT_LIMITS
from client.transports.patience import patient
from client.transports.timed_socket import PROGRESS, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.transports.patience import Patience

T = TypeVar("T")

LOOK_EVERY = 0.05
"""Seconds between two looks at a request that is watched."""


class _Running(Generic[T]):
    """A function under way on a thread of its own, in the caller's context."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._function = function
        self._ended = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._function())
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits
            self._error = error
        finally:
            self._ended.set()

    def ends_within(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def result(self) -> T:
        """Return or raise what the function did; only once it has ended."""
        if self._error is not None:
            raise self._error
        return self._result[0]


def bounded(function: Callable[[], T], limit: float) -> T:
    """Return ``function()`` if it ends within ``limit`` seconds; else raise `Unreachable` and let it run on alone."""
    running = _Running(function, "neff-cache upload")
    if not running.ends_within(limit):
        raise Unreachable(f"the upload has not ended within {limit:g} s")
    return running.result()


def watched(function: Callable[[], T], patience: Patience) -> T:
    """Return ``function()``, a request made with ``patience``; raise if it does not keep the pace that is expected.

    That is what the request itself says by `Patience.pace`, else `PROGRESS` bytes within each ``patience.quiet``
    seconds. Raises `Unreachable` or `TooSlow`, and lets the request run on alone.
    """
    watch, limits = patience.watch, DEFAULT_LIMITS
    with patient(patience):
        running = _Running(function, "neff-cache request")
    begin = since = time.monotonic()
    pace, moved = Pace(PROGRESS, patience.quiet), 0
    while not running.ends_within(LOOK_EVERY):
        now = time.monotonic()
        if watch.pace is not None and watch.pace is not pace:  # what came before was not yet the program
            pace, moved, begin, since = watch.pace, watch.moved, now, now
        elif watch.moved - moved >= pace.progress:
            moved, since = watch.moved, now
        elif now - since >= pace.seconds or now - begin >= pace.whole:
            if patience.is_too_slow(pace, limits):
                raise TooSlow("a program comes more slowly than it compiles")
            raise Unreachable(f"no answer within {now - since:.1f} s")
    return running.result()
