"""A socket on which no wait is without end.

A plain time-out would not do: it bounds each call, and a server that sends one byte now and then never runs into it.
Here a head has to arrive whole within its time, and a body, sent or received, has to move by a number of bytes within a
number of seconds, again and again: its `Pace`.
"""

from __future__ import annotations

import io
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from _typeshed import ReadableBuffer, WriteableBuffer

PROGRESS = 64 * 1024
_BUFFER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Pace:
    """``progress`` bytes have to arrive within each ``seconds``, and all of them within ``whole`` seconds."""

    progress: int
    seconds: float
    whole: float = float("inf")


class TimedSocket:
    """A connected socket as `http.client` uses one. Times are in seconds of the clock ``monotonic``."""

    def __init__(self, sock: socket.socket, monotonic: Callable[[], float]) -> None:
        self._sock = sock
        self._monotonic = monotonic
        self._stall = float("inf")
        self._pace = Pace(PROGRESS, self._stall)
        self._until = self._last = float("inf")
        self._moved = 0
        self._rolls = False
        self._users = 1

    def limit(self, until: float, stall: float) -> None:
        """Let nothing go on after ``until``, whatever else is allowed, and no body stand still for ``stall``."""
        self._last, self._stall = until, stall

    def expect_within(self, seconds: float) -> None:
        """Let all that is read from here on arrive within ``seconds``."""
        self._until, self._rolls = self._monotonic() + seconds, False

    def expect_progress(self, pace: Pace | None = None) -> None:
        """Let reading go on for as long as it keeps ``pace``; without one, `PROGRESS` bytes within each ``stall``."""
        self._pace = pace or Pace(PROGRESS, self._stall)
        self._last = min(self._last, self._monotonic() + self._pace.whole)
        self._roll()

    def _roll(self) -> None:
        self._until, self._rolls, self._moved = self._monotonic() + self._pace.seconds, True, 0

    def _arm(self) -> None:
        left = min(self._until, self._last) - self._monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(None if left == float("inf") else left)

    def read_into(self, buffer: WriteableBuffer) -> int:
        """Return how many bytes were put into ``buffer``; raises TimeoutError after the deadline."""
        self._arm()
        count = self._sock.recv_into(buffer)
        self._moved += count
        if self._rolls and self._moved >= self._pace.progress:
            self._roll()
        return count

    def sendall(self, data: ReadableBuffer) -> None:
        """Send ``data`` for as long as the other side takes `PROGRESS` bytes within each ``stall``."""
        rest = memoryview(data).cast("B")
        while rest:
            self._until = self._monotonic() + self._stall
            self._arm()
            self._sock.sendall(rest[:PROGRESS])
            rest = rest[PROGRESS:]

    def is_silent(self) -> bool:
        """Return whether the kept connection is as it was left: what arrives unasked is its end."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader, which keeps the socket open until it is closed itself."""
        self._users += 1
        return io.BufferedReader(_Reader(self), _BUFFER)

    def close(self) -> None:
        """Close the socket once its last reader is closed."""
        self._users -= 1
        if not self._users:
            self._sock.close()


class _Reader(io.RawIOBase):
    def __init__(self, sock: TimedSocket) -> None:
        self._timed = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._timed.read_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._timed.close()
        super().close()
