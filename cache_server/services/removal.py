"""Taking an entry away: delete and quarantine, each in an order that a crash cannot turn into a wrong answer.

First the row leaves ``ready``, committed: from then on the key is a miss. Then, under the key's lock, entry.json goes,
then the outputs, then the row. Whoever finds a row in between finishes the work first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache_server.access import SERVER
from cache_server.clock import folder_stamp
from cache_server.database import entries
from cache_server.database.models import EntryState
from cache_server.stores.base import Blob
from client.layout import ENTRY_FILE, is_entry_file

if TYPE_CHECKING:
    from collections.abc import Collection

    from cache_server.access import Actor
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.services.audit import Audit
    from cache_server.stores.base import Store
    from client.wire import Entry


class Removal:
    """The steps that delete and quarantine share. Every method runs under the key's lock."""

    def __init__(self, store: Store, database: Database, audit: Audit) -> None:
        self._store = store
        self._database = database
        self._audit = audit

    def finish(self, address: Address, found: entries.Indexed) -> None:
        """Finish a removal that was begun, here or by a server that died."""
        if found.state is EntryState.QUARANTINED:
            self._set_aside(
                address,
                [
                    self._file(address, found.entry, output.name)
                    for output in found.entry.outputs
                    if self._is_damaged(address, found.entry, output.name)
                ],
            )
        self._erase(address)

    def quarantine(
        self, address: Address, entry: Entry | None, damaged: Collection[str], *, by: Actor = SERVER
    ) -> None:
        """Set entry.json and the outputs called ``damaged`` aside, and free the key.

        ``entry`` is None for an entry.json that cannot be read. ``by``: who found it damaged.
        """
        with self._database.transaction() as session:
            entries.mark(session, address, EntryState.QUARANTINED)
            detail = {"damaged": list(damaged), "readable": entry is not None}
            self._audit.change(session, by, "entry.quarantine", address=address, detail=detail)
        self._set_aside(address, [] if entry is None else [self._file(address, entry, name) for name in damaged])
        self._erase(address)

    def _is_damaged(self, address: Address, entry: Entry, name: str) -> bool:
        output = entry.output(name)
        return output is not None and self._store.stored_size(Blob.of(address, output)) != output.stored_size

    @staticmethod
    def _file(address: Address, entry: Entry, name: str) -> str:
        output = entry.output(name)
        if output is None:
            raise LookupError(name)
        return Blob.of(address, output).file_name

    def _set_aside(self, address: Address, files: list[str]) -> None:
        with self._database.reading() as connection:
            now = self._database.now(connection)
        self._store.set_aside(address, [ENTRY_FILE, *files], folder_stamp(now))

    def _erase(self, address: Address) -> None:
        self._store.remove(address, ENTRY_FILE)
        for file in self._store.files(address):
            if is_entry_file(file.name):  # what somebody else has put there is not ours to remove
                self._store.remove(address, file.name)
        with self._database.transaction() as session:
            entries.remove(session, address)
