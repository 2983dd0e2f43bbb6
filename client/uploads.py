"""Uploads that a job does not wait for: a short queue, and a thread that lives as long as there is something in it."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from client.warnings import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MOST = 8
MOST_BYTES = 256 << 20
"""Bytes that uploads may keep in memory: those under way and those that wait."""
FLUSH_LIMIT = 10.0
"""Seconds that a job's exit may wait for its uploads."""


class Upload(Generic[T]):
    """One upload under way. Its result may be had for as long as somebody cares to wait."""

    def __init__(self, function: Callable[[], T], size: int) -> None:
        self.size = size
        self._function = function
        self._done = threading.Event()
        self._result: list[T] = []

    def run(self) -> None:
        """Upload; whatever goes wrong is the job's business no more."""
        try:
            self._result.append(self._function())
        except Exception as error:  # noqa: BLE001 - nobody is there to hear it
            LOGGER.debug("neff-cache: an upload in the background broke: %r", error)
        finally:
            self._done.set()

    def wait(self, seconds: float) -> T | None:
        """Return the result if there is one within ``seconds``."""
        self._done.wait(seconds)
        return self._result[0] if self._result else None


class Uploads:
    """At most `MOST` uploads of `MOST_BYTES` together, one after the other. Safe to use from threads, not after a fork.

    A process that is killed loses its uploads, and the leases that they would have ended run out by themselves.
    """

    def __init__(self, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._queue: deque[Upload[object]] = deque()
        self._bytes = 0
        self._number = 0
        self._running = False
        self._closed = False

    def offer(self, function: Callable[[], T], size: int) -> Upload[T] | None:
        """Have ``function`` called in the background, or return None if there is no room: then upload at once.

        ``size`` is how many bytes it keeps in memory.
        """
        with self._changed:
            if self._closed or self._number >= self._most or self._bytes + size > self._most_bytes:
                return None
            upload = Upload(function, size)
            self._queue.append(upload)  # type: ignore[arg-type] # a queue of uploads of whatever result
            self._number += 1
            self._bytes += size
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="neff-cache uploads", daemon=True).start()
        return upload

    def flush(self, seconds: float) -> int:
        """Wait up to ``seconds`` for all uploads, begin none any more, and return how many are lost."""
        with self._changed:
            self._changed.wait_for(lambda: not self._number, seconds)
            self._closed = True
            self._queue.clear()
            return self._number

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._running = False
                    return
                upload = self._queue.popleft()
            upload.run()
            with self._changed:
                self._number -= 1
                self._bytes -= upload.size
                self._changed.notify_all()
