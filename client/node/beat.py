"""Signs of life of those who hold the kernel's locks of a node tier.

The kernel frees a lock when its owner dies, not when it stands still: a process that is stopped, by a debugger or with
its container, holds what it holds. So a thread of each process touches the files of the locks that it holds, and who
waits behind one sees by its time of change whether the owner still moves.
"""

from __future__ import annotations

import os
import threading
import time
from _thread import start_new_thread
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT = 1.0
STILL_AFTER = 6.0
"""Seconds without a beat after which an owner counts as stopped. One that only was slow costs a compile too many."""


class Held:
    """Descriptors whose locks this process holds, each of which it touches every `BEAT`. Safe to use from threads."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._descriptors: set[int] = set()
        self._copies: list[int] = []
        self._beats = False

    def add(self, descriptor: int) -> None:
        """Begin to touch the file of a descriptor."""
        with self._lock:
            self._descriptors.add(descriptor)
            if self._beats:
                return
            with suppress(RuntimeError):  # from Python 3.12 on there are no new threads at exit
                start_new_thread(self._beat, ())  # not by `threading`, which waits for it to have begun
                self._beats = True

    def discard(self, descriptor: int) -> None:
        """End that, before the descriptor is closed."""
        with self._lock:
            self._descriptors.discard(descriptor)

    def let_go(self) -> None:
        """In a forked child: close all, because a child that outlives its parent must not keep the parent's locks."""
        descriptors = [*self._descriptors, *self._copies]
        self._begin()
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT)
            with self._lock:
                if not self._descriptors:
                    self._beats = False
                    return
                # of its own, so that nobody waits for a file system that hangs, and no closed number is touched
                self._copies = [os.dup(descriptor) for descriptor in self._descriptors]
            for copy in self._copies:
                with suppress(OSError):
                    os.utime(copy)
            while self._copies:
                os.close(self._copies.pop())


class Watch:
    """Watches one file for beats, by our own clock: no clock is compared with a file's times."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._since = 0.0

    def stands_still(self, status: os.stat_result) -> bool:
        """Take note of the file's status now; return whether it has stayed the same for `STILL_AFTER`."""
        return self.seconds_still(status) >= STILL_AFTER

    def seconds_still(self, status: os.stat_result) -> float:
        """Take note of the file's status now; return for how long it has stayed the same before our eyes."""
        now, seen = self._clock(), (status.st_dev, status.st_ino, status.st_mtime_ns)
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since
