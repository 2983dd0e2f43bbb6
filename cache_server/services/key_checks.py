"""Checks of one key: its entry.json, its outputs, its row, and whether the three agree."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from sqlalchemy import select

from cache_server.clock import is_far
from cache_server.database.models import EntryRow, EntryState, LeaseRow, LeaseState
from cache_server.errors import Problem
from cache_server.services.entry_checks import check_entry
from cache_server.services.invariants import Finding
from cache_server.services.verification import fault
from cache_server.stores.base import Blob, StoreError
from client.errors import WireError
from client.layout import ENTRY_FILE
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from cache_server.address import Address
    from cache_server.stores.base import Store, StoredFile

_OUTPUT_FILE = re.compile(r"[0-9a-f]{64}(\.zst)?")


class KeyChecks:
    """Checks keys one at a time. Reads only, and takes no lock: what others change meanwhile may look broken."""

    def __init__(self, store: Store, *, deep: bool, orphan_seconds: float, now: float) -> None:
        """``deep``: hash every output. An orphan that last changed far from ``now`` is left over."""
        self._store = store
        self._deep = deep
        self._orphan_seconds = orphan_seconds
        self._now = now

    def findings(self, connection: Connection | None, address: Address, files: Sequence[StoredFile]) -> list[Finding]:
        """Return what is broken at a key whose folder holds ``files``; ``connection`` None leaves the row out."""
        found: list[Finding] = []
        entry: Entry | None = None
        try:
            entry = self._entry(address) if any(file.name == ENTRY_FILE for file in files) else None
            has_entry = entry is not None
        except StoreError as error:
            return [Finding("unreadable", f"{address.path}/{ENTRY_FILE}", str(error))]
        except (WireError, ValueError, RecursionError) as error:
            has_entry = True
            found.append(Finding("entry_unreadable", str(address), str(error)))
        except Problem as error:
            has_entry = True
            found.append(Finding("entry_misplaced", str(address), str(error)))
        if entry is not None:
            found += self._outputs(address, entry, files)
        if not found:
            # beside an entry.json that means nothing, nothing can be said to be left over
            found += self._strangers(address, entry, files)
        if connection is not None:
            found += self._row(connection, address, entry, has_entry=has_entry)
        return found

    def _entry(self, address: Address) -> Entry | None:
        raw = self._store.read_entry(address)
        if raw is None:
            return None
        entry = Entry.from_json(json.loads(raw))
        check_entry(address, entry)
        return entry

    def _outputs(self, address: Address, entry: Entry, files: Sequence[StoredFile]) -> Iterator[Finding]:
        sizes = {file.name: file.size for file in files}
        for output in entry.outputs:
            size = sizes.get(Blob.of(address, output).file_name)
            if size is None:
                yield Finding("output_missing", str(address), f"{output.name} ({output.sha256})")
            elif size != output.stored_size:
                yield Finding("output_size", str(address), f"{output.name}: {size} bytes, not {output.stored_size}")
            elif self._deep:
                try:
                    if fault(self._store, address, output) is not None:
                        yield Finding("output_digest", str(address), output.sha256)
                except StoreError as error:
                    yield Finding("unreadable", f"{address.path}/{output.sha256}", str(error))

    def _strangers(self, address: Address, entry: Entry | None, files: Sequence[StoredFile]) -> Iterator[Finding]:
        for file in unnamed(address, entry, files):
            if not _OUTPUT_FILE.fullmatch(file.name):
                yield Finding("unknown_file", f"{address.path}/{file.name}")
            elif is_far(file.modified, self._orphan_seconds, self._now):
                yield Finding("orphan", f"{address.path}/{file.name}", f"{file.size} bytes")

    def _row(
        self, connection: Connection, address: Address, entry: Entry | None, *, has_entry: bool
    ) -> Iterator[Finding]:
        row = connection.execute(
            select(EntryRow.state, EntryRow.document).where(
                EntryRow.project == address.project, EntryRow.kind == str(address.kind), EntryRow.key == address.key
            )
        ).first()
        if row is None:
            if entry is not None:
                yield Finding("row_missing", str(address))
            return
        if row.state != EntryState.READY:
            yield Finding("removal_unfinished", str(address), row.state)
            return
        if not has_entry:
            yield Finding("row_without_entry", str(address))
        try:
            known = Entry.from_json(json.loads(row.document))
        except (WireError, ValueError, RecursionError) as error:
            yield Finding("row_unreadable", str(address), str(error))
            return
        if entry is not None and known != entry:
            yield Finding("row_differs", str(address))
        held = select(LeaseRow.generation).where(
            LeaseRow.project == address.project,
            LeaseRow.kind == str(address.kind),
            LeaseRow.key == address.key,
            LeaseRow.state == LeaseState.HELD,
        )
        generation = connection.execute(held).scalar()
        if generation is not None:
            yield Finding("lease_on_published", str(address), f"generation {generation}")


def unnamed(address: Address, entry: Entry | None, files: Sequence[StoredFile]) -> list[StoredFile]:
    """Return the files of a key that neither are entry.json nor named by it."""
    named = {ENTRY_FILE} if entry is None else {ENTRY_FILE, *(Blob.of(address, o).file_name for o in entry.outputs)}
    return [file for file in files if file.name not in named]
