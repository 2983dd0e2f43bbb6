"""Room in the store, promised before bytes arrive, so that uploads at the same time cannot overshoot what is there.

The file system knows what has been written; it cannot know what is still on its way. What is on its way is counted
here, in this process: other programs on the same disk, and other servers, are what `reserve_bytes` is left free for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cache_server.stores.base import StoreFullError

if TYPE_CHECKING:
    from collections.abc import Callable

STEP = 8 << 20
"""Bytes by which the reservation of a body without a stated length grows: one question to the disk for each."""


class Space:
    """The store's room, shared among uploads. Blocks for a look at the file system: worker threads only."""

    def __init__(self, free_bytes: Callable[[], int | None], *, reserve_bytes: int) -> None:
        self._free_bytes = free_bytes
        self._reserve = reserve_bytes
        self._guard = threading.Lock()
        self._promised = 0

    @property
    def promised(self) -> int:
        """Bytes that are promised and not written yet."""
        return self._promised

    def has_room(self) -> bool:
        """Return whether an upload of a few bytes would be promised its room."""
        free = self._free_bytes()
        return free is None or free - self._reserve - self._promised > 0

    def reservation(self) -> Reservation:
        """Return a reservation of nothing yet."""
        return Reservation(self)

    def _promise(self, size: int) -> None:
        with self._guard:
            # asked under the lock: what another thread writes meanwhile is then counted twice, never not at all
            free = self._free_bytes()
            if free is not None and size > free - self._reserve - self._promised:
                raise StoreFullError(
                    f"{size} bytes do not fit: {free} are free, {self._promised} of them promised to uploads "
                    f"and {self._reserve} kept free"
                )
            self._promised += size

    def _give_back(self, size: int) -> None:
        with self._guard:
            self._promised -= size


class Reservation:
    """One upload's share. Used by one thread at a time; `release` may be called twice."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._covered = 0
        self._written = 0
        self._left = 0

    def cover(self, size: int) -> None:
        """See that the first ``size`` bytes are covered; raises `StoreFullError`, which changes nothing."""
        more = size - self._covered
        if more > 0:
            self._space._promise(more)  # noqa: SLF001 - one class in two parts
            self._covered += more
            self._left += more

    def will_write(self, size: int) -> None:
        """Cover ``size`` bytes more than were written so far, in steps: a body whose length nobody stated."""
        wanted = self._written + size
        if wanted > self._covered:
            try:
                self.cover(max(wanted, self._covered + STEP))
            except StoreFullError:
                # the whole step does not fit any more; what is really there may
                self.cover(wanted)

    def wrote(self, size: int) -> None:
        """Count bytes that the file system has now, and so counts itself."""
        self._written += size
        settled = min(size, self._left)
        self._left -= settled
        self._space._give_back(settled)  # noqa: SLF001

    def release(self) -> None:
        """Give back what is not used."""
        self._space._give_back(self._left)  # noqa: SLF001
        self._left = 0
