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
from cache_server.services.entry_checks import check_entry, missing_outputs, wrong_sizes
from cache_server.stores.base import Blob, StoreError
from client.errors import WireError
from client.layout import ENTRY_FILE
from client.wire import Entry

if TYPE_CHECKING:
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.locking import KeyLocks
    from cache_server.services.audit import Audit
    from cache_server.services.removal import Removal
    from cache_server.stores.base import Store

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
        has_entry = self._store.read_entry(address) is not None
        if damaged or not has_entry:
            self._check_listed(address, found.entry, damaged, has_entry=has_entry)
            _log.warning("entry set aside: the store lacks a part of it", address=str(address), damaged=damaged)
            self._removal.quarantine(address, found.entry, damaged)
            return None
        return found.entry

    def index_anew(self, address: Address) -> None:
        """Make the row of the key from entry.json, or set that aside if it means nothing. Under the key's lock."""
        raw = self._store.read_entry(address)
        if raw is not None:
            self._judged(address, raw)
        # nothing was changed so far: a store that cannot be believed leaves the row as it is
        with self._database.transaction() as session:
            entries.remove(session, address)
        self._adopt(address)

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
        entry, damaged, reason = self._judged(address, raw)
        if entry is None or reason:
            _log.warning("entry.json in the store is unusable and was set aside", address=str(address), reason=reason)
            self._removal.quarantine(address, entry, damaged)
            return None
        self.add(address, entry)
        _log.info("entry adopted from the store", address=str(address))
        return entry

    def _judged(self, address: Address, raw: bytes) -> tuple[Entry | None, list[str], str]:
        """Return the entry that ``raw`` holds, its outputs that are at fault, and why it is unusable if it is.

        `StoreError` if a second look finds something else.
        """
        entry: Entry | None = None
        faults: dict[str, str] = {}
        try:
            entry = Entry.from_json(json.loads(raw))
            check_entry(address, entry)
            faults = self._faults(address, entry)
            reason = "; ".join(faults.values())
        except (WireError, Problem, ValueError, RecursionError) as error:
            reason = str(error)
        if reason:
            listed = {file.name: file.size for file in self._store.files(address)}
            if self._store.read_entry(address) != raw or listed.get(ENTRY_FILE) != len(raw):
                raise StoreError(f"{ENTRY_FILE} of {address} is not sent as it is stored")
        if faults and entry is not None and self._faults(address, entry) != faults:
            raise StoreError(f"two reads of outputs of {address} differ")
        return entry, list(faults), reason

    def _faults(self, address: Address, entry: Entry) -> dict[str, str]:
        """Return what is wrong with the outputs as they are stored, by name."""
        missing = missing_outputs(self._store, address, entry)
        if not missing:
            return wrong_sizes(self._store, address, entry)
        self._check_listed(address, entry, missing, has_entry=True)
        return {name: f"{name} is missing or short" for name in missing}

    def _check_listed(self, address: Address, entry: Entry, damaged: list[str], *, has_entry: bool) -> None:
        """Raise `StoreError` unless a listing of the key says the same: one answer is no reason to throw away a key."""
        sizes = {file.name: file.size for file in self._store.files(address)}
        listed = [
            each.name for each in entry.outputs if sizes.get(Blob.of(address, each).file_name) != each.stored_size
        ]
        if (listed, ENTRY_FILE in sizes) != (damaged, has_entry):
            raise StoreError(f"the store lists other files of {address} than it answers for")
