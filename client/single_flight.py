"""One computation per key among the threads of a process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


class _Flight(Generic[T]):
    __slots__ = ("done", "error", "result")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.result: T | None = None
        self.error: Exception | None = None


class SingleFlight(Generic[T]):
    """Runs one function per key at a time; threads that ask meanwhile get its result, or its shared error.

    ``shared`` names the exceptions that followers take over. Any other end of the leader (an interrupt, say) is its
    own, and one of the followers becomes the leader.
    """

    def __init__(self, shared: tuple[type[Exception], ...] = ()) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight[T]] = {}

    def run(self, key: Hashable, function: Callable[[], T]) -> tuple[T, bool]:
        """Return the result for ``key``, and whether it is another thread's."""
        while True:
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    flight = self._flights[key] = _Flight()
                    break
            flight.done.wait()
            if flight.error is not None:
                raise flight.error
            if flight.result is not None:
                return flight.result, True
        try:
            flight.result = function()
        except self._shared as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                del self._flights[key]
            flight.done.set()
        return flight.result, False
