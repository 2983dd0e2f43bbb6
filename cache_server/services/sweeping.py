"""What crashes and abandoned uploads leave behind: finished, adopted or removed, at start and then every so often."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import structlog

from cache_server.clock import is_far
from cache_server.database import entries, leases
from cache_server.database.models import EntryState
from cache_server.errors import Problem
from cache_server.stores.base import Blob, StoreError
from client.layout import ENTRY_FILE, is_entry_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.locking import KeyLocks
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.removal import Removal
    from cache_server.stores.base import Store, StoredFile
    from client.wire import Entry

_LEASE_LIFE = 86400.0
"""Seconds for which a lease that ended is kept, for people who look at what happened."""

_log = structlog.get_logger("cache_server.sweep")


class Sweeping:
    """Sweep store and database. Blocks, for as long as a walk over the store takes: one worker thread."""

    def __init__(
        self,
        *,
        store: Store,
        database: Database,
        locks: KeyLocks,
        catalogue: Catalogue,
        removal: Removal,
        orphan_seconds: float,
        quarantine_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._database = database
        self._locks = locks
        self._catalogue = catalogue
        self._removal = removal
        self._orphan_seconds = orphan_seconds
        self._quarantine_seconds = quarantine_seconds
        self._now = now
        self.stopping = False

    def recover(self, *, alone: bool) -> None:
        """Finish what a crash interrupted. ``alone``: no other server uses the store, so every upload is dead."""
        removed = self._store.sweep_uploads(math.inf if alone else self._now() - self._orphan_seconds)
        finished = self._finish_removals()
        if removed or finished:
            _log.info("recovered", uploads_removed=removed, removals_finished=finished)

    def _finish_removals(self) -> int:
        with self._database.reading() as connection:
            begun = entries.being_removed(connection)
        for address in begun:
            try:
                with self._locks.hold(address):
                    found = self._catalogue.indexed(address)
                    if found is not None and found.state is not EntryState.READY:
                        self._removal.finish(address, found)
            except Problem as error:
                # another server is at it, perhaps the one that began it
                _log.info("removal not finished", address=str(address), error=str(error))
        return len(begun)

    def sweep(self) -> int:
        """Adopt unknown entries, remove outputs that no entry names and that are old; return how many were removed."""
        now = self._now()
        removed = 0
        self._finish_removals()
        for address in self._store.addresses():
            if self.stopping:
                return removed
            try:
                removed += self._sweep_key(address, now)
            except (StoreError, Problem) as error:
                _log.warning("key not swept", address=str(address), error=str(error))
        self._store.sweep_uploads(now - self._orphan_seconds)
        self._store.sweep_quarantine(now - self._quarantine_seconds)
        with self._database.transaction() as session:
            leases.forget(session, now=self._database.now(session), lease_life=_LEASE_LIFE)
        return removed

    def _sweep_key(self, address: Address, now: float) -> int:
        files = self._store.files(address)
        found = self._catalogue.indexed(address)
        known = None if found is None else found.entry
        has_entry = any(file.name == ENTRY_FILE for file in files)
        if has_entry == (known is not None) and not self._orphans(address, known, files, now):
            return 0
        # something differs: look again, with the key to ourselves and entry.json freshly read
        with self._locks.hold(address):
            # asked for by name too: a listing that lacks entry.json must not make orphans of its outputs
            entry = self._catalogue.settle(address)
            files = self._store.files(address)
            if entry is None and any(file.name == ENTRY_FILE for file in files):
                raise StoreError(f"{ENTRY_FILE} is listed, and the store says that it is not there")
            orphans = self._orphans(address, entry, files, now)
            for file in orphans:
                self._store.remove(address, file.name)
            return len(orphans)

    def _orphans(self, address: Address, entry: Entry | None, files: list[StoredFile], now: float) -> list[StoredFile]:
        named = {ENTRY_FILE} if entry is None else {ENTRY_FILE, *(Blob.of(address, o).file_name for o in entry.outputs)}
        orphans = [file for file in files if file.name not in named and is_entry_file(file.name)]
        return [file for file in orphans if is_far(file.modified, self._orphan_seconds, now)]
