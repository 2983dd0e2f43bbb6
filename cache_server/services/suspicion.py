"""A reader says that an output's bytes are wrong: look for ourselves, and set the entry aside if it is true."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from cache_server.access import SERVER
from cache_server.database.models import EntryState
from cache_server.errors import Problem
from cache_server.services.verification import fault
from cache_server.stores.base import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.access import Actor
    from cache_server.address import Address
    from cache_server.locking import KeyLocks
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.removal import Removal
    from cache_server.stores.base import Store
    from client.transports.base import Verdict

VERDICT_LIFE = 60.0
"""Seconds for which an output that was found sound is not hashed again."""

_AT_ONCE = 4
_MOST_REMEMBERED = 10_000


class Suspicion:
    """Verify outputs on request. Blocks: worker threads only."""

    def __init__(
        self,
        *,
        store: Store,
        locks: KeyLocks,
        catalogue: Catalogue,
        removal: Removal,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._locks = locks
        self._catalogue = catalogue
        self._removal = removal
        self._monotonic = monotonic
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._sound: dict[tuple[Address, str], float] = {}

    def suspect(
        self,
        address: Address,
        sha256: str,
        *,
        by: Actor = SERVER,
        pace: Callable[[int], None] = lambda _size: None,
    ) -> Verdict:
        """Return what became of the entry, which is set aside only if two reads find the same fault.

        ``pace`` is called after each piece that was read; what it raises ends the reading. `StoreError` if the output
        cannot be read, or the reads differ: that is no verdict. Raises `Problem`: ``invalid`` if ``sha256`` is no
        output of the entry, ``throttled`` if too many are verified.
        """
        if not self._slots.acquire(blocking=False):
            raise Problem("throttled", headers={"Retry-After": "2"})
        try:
            with self._locks.hold(address):
                return self._verify(address, sha256, by, pace)
        finally:
            self._slots.release()

    def _verify(self, address: Address, sha256: str, by: Actor, pace: Callable[[int], None]) -> Verdict:
        found = self._catalogue.indexed(address)
        entry = self._catalogue.settle(address)
        if entry is None:
            return "absent" if found is None or found.state is EntryState.DELETING else "quarantined"
        output = next((output for output in entry.outputs if output.sha256 == sha256), None)
        if output is None:
            raise Problem("invalid", f"{sha256} is no output of this entry")
        place = (address, sha256)
        if self._monotonic() - self._sound.get(place, float("-inf")) < VERDICT_LIFE:
            return "sound"
        first = fault(self._store, address, output, pace=pace)
        second = None if first is None else fault(self._store, address, output, fresh=True, pace=pace)
        if second is None:
            self._remember(place)
            return "sound"
        if second != first:
            raise StoreError(f"two reads of {sha256} of {address} differ: first {first}, then {second}")
        self._removal.quarantine(address, entry, [output.name], by=by)
        return "quarantined"

    def _remember(self, place: tuple[Address, str]) -> None:
        if len(self._sound) >= _MOST_REMEMBERED:
            self._sound.clear()
        self._sound[place] = self._monotonic()
