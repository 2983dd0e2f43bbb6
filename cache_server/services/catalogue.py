"""What stands under a key: the index, made to agree with the store where they differ.

The store is the truth for entries. A lost or stale database costs a look at entry.json, never an entry.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import structlog

from cache_server.access import SERVER
from cache_server.database import entries, leases
from cache_server.database.models import EntryState
from cache_server.errors import Problem
from cache_server.services.entry_checks import check_entry, missing_outputs
from client.errors import WireError
from client.wire import Entry

if TYPE_CHECKING:
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.locking import KeyLocks
    from cache_server.services.audit import Audit
    from cache_server.services.removal import Removal
    from cache_server.stores.base import Blob, Store

_log = structlog.get_logger("cache_server.catalogue")


class Catalogue:
    """Entries by key. All methods block: worker threads only."""

    def __init__(self, store: Store, database: Database, locks: KeyLocks, removal: Removal, audit: Audit) -> None:
        self._store = store
        self._locks = locks
        self._database = database
        self._removal = removal
        self._audit = audit

    def indexed(self, address: Address) -> entries.Indexed | None:
        """Return the index row of the key."""
        with self._database.reading() as connection:
            return entries.indexed(connection, address)

    def is_sound(self, address: Address, entry: Entry) -> bool:
        """Return whether every output is stored with its size (digests are checked by readers and `suspect`)."""
        return not missing_outputs(self._store, address, entry)

    def settle(self, address: Address) -> Entry | None:
        """Return the entry that stands under the key, after finishing or repairing what a crash or damage left.

        The caller holds the key's lock. A removal that was begun is finished; an entry.json that the index does not
        know is adopted; an entry whose outputs are gone or short is set aside, so that the key is free again.
        """
        found = self.indexed(address)
        if found is not None and found.state is not EntryState.READY:
            self._removal.finish(address, found)
            return None
        if found is None:
            return self._adopt(address)
        damaged = missing_outputs(self._store, address, found.entry)
        if damaged or self._store.read_entry(address) is None:
            _log.warning("entry set aside: the store lacks a part of it", address=str(address), damaged=damaged)
            self._removal.quarantine(address, found.entry, damaged)
            return None
        return found.entry

    def make_room(self, blob: Blob, stored_size: int) -> None:
        """Remove what is stored in ``blob``'s place with another size, unless an entry names it.

        Two zstd frames of the same bytes differ in size; an upload must not be stuck behind one that was abandoned.
        """
        if self._store.stored_size(blob) in {None, stored_size}:
            return
        with self._locks.hold(blob.address):
            entry = self.settle(blob.address)
            if entry is None or blob.sha256 not in {output.sha256 for output in entry.outputs}:
                self._store.remove(blob.address, blob.file_name)

    def add(self, address: Address, entry: Entry) -> None:
        """Index an entry that stands in the store; a lease on its key has ended with it, as in a publish."""
        with self._database.transaction() as session:
            if entries.indexed(session, address) is None:
                # nobody here has hashed its outputs
                entries.insert(session, entry, now=self._database.now(session), checked=0.0)
                self._audit.change(session, SERVER, "entry.adopt", address=address)
            leases.end(session, address)

    def _adopt(self, address: Address) -> Entry | None:
        raw = self._store.read_entry(address)
        if raw is None:
            return None
        entry: Entry | None = None
        damaged: list[str] = []
        try:
            entry = Entry.from_json(json.loads(raw))
            check_entry(address, entry)
            damaged = missing_outputs(self._store, address, entry)
            reason = f"outputs are missing or short: {', '.join(damaged)}" if damaged else ""
        except (WireError, Problem, ValueError, RecursionError) as error:
            reason = str(error)
        if entry is None or reason:
            _log.warning("entry.json in the store is unusable and was set aside", address=str(address), reason=reason)
            self._removal.quarantine(address, entry, damaged)
            return None
        self.add(address, entry)
        _log.info("entry adopted from the store", address=str(address))
        return entry
