"""A circuit breaker for one direction (reading or writing) of one shared cache."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FAILURES = 2
"""Failures in a row that open the breaker."""
FIRST_PAUSE = 30.0
LONGEST_PAUSE = 600.0


class Breaker:
    """Closed: requests go out. Open: they do not, for 30 s, then 60 s, up to 10 min. Stopped: never again.

    An open breaker is not closed by trying a job's own request: when its pause is over `due` says so, once, and
    whoever sees that asks in the background and reports the outcome. Safe to use from several threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._pause = 0.0
        self._retry_at: float | None = None
        self._probing = False
        self._stopped = False

    def allows(self) -> bool:
        """Return whether a request may be sent now."""
        with self._lock:
            return self._retry_at is None and not self._stopped

    def due(self) -> bool:
        """Return True to exactly one caller after each pause: it must ask, and then call `succeeded` or `failed`."""
        with self._lock:
            if self._stopped or self._probing or self._retry_at is None or self._clock() < self._retry_at:
                return False
            self._probing = True
            return True

    def succeeded(self) -> None:
        """Close the breaker after a request that was answered."""
        with self._lock:
            if self._retry_at is not None:
                # one more failure opens it again, and for longer: the server has to prove itself first
                self._failures = FAILURES - 1
            else:
                self._failures = 0
                self._pause = 0.0
            self._retry_at = None
            self._probing = False

    def failed(self) -> None:
        """Count a request that was not answered, and open after `FAILURES` in a row."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES:
                self._open()

    def trip(self) -> None:
        """Open at once, for a caller that has lost enough time."""
        with self._lock:
            self._failures = max(self._failures, FAILURES)
            self._open()

    def _open(self) -> None:
        if self._retry_at is None or self._probing:
            self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
            self._retry_at = self._clock() + self._pause
        self._probing = False

    def stop(self) -> None:
        """Send nothing any more: the server said that we have no right."""
        with self._lock:
            self._stopped = True
