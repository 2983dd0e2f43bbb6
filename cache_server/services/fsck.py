"""Walk store and database, and name every invariant that is broken. Reads only.

It may run beside a server: what a server is in the middle of looks broken for a moment, so every key that looks wrong
is looked at once more a little later, and only what is found both times is reported.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from sqlalchemy import select, tuple_

from cache_server.address import Address
from cache_server.clock import is_far
from cache_server.database.models import EntryRow
from cache_server.services.invariants import Finding, Report
from cache_server.services.key_checks import KeyChecks, unnamed
from cache_server.services.meta_checks import meta_findings
from cache_server.stores.base import MetaName, StoredFile
from client.errors import WireError
from client.layout import ENTRY_FILE, is_quarantine_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from cache_server.database.engine import Database
    from cache_server.stores.base import Store

SETTLE_SECONDS = 2.0
"""Seconds until a second look: longer than one step of a publish or removal takes."""

_PAGE = 1000


class Fsck:
    """One check. Memory grows with the number of entries (some hundred bytes each), not with their size."""

    def __init__(
        self,
        store: Store,
        database: Database | None,
        *,
        orphan_seconds: float,
        deep: bool = False,
        alone: bool = False,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``database`` None: there is none. ``alone``: no server runs, so every upload that has not ended is dead."""
        self._store = store
        self._database = database
        self._begun = now()
        # alone: a dead one may be a moment old
        self._upload_seconds = 0.0 if alone else orphan_seconds
        self._checks = KeyChecks(store, deep=deep, orphan_seconds=orphan_seconds, now=self._begun)
        self._settle_seconds = 0.0 if alone else SETTLE_SECONDS
        self._sleep = sleep

    def run(self) -> Report:
        """Check everything. Raises `StoreError` or `SQLAlchemyError` if store or database do not answer at all."""
        report = Report()
        wrong: dict[Address, list[Finding]] = {}
        if self._database is None:
            report.findings.append(Finding("database_missing", self._store.location))
            self._walk(None, report, wrong)
        else:
            with self._database.reading() as connection:
                seen = self._walk(connection, report, wrong)
                for address in self._rows(connection):
                    if address not in seen and address not in wrong:
                        self._look(connection, address, wrong)
        self._look_again(report, wrong)
        self._uploads(report)
        report.findings.sort()
        return report

    def _walk(self, connection: Connection | None, report: Report, wrong: dict[Address, list[Finding]]) -> set[Address]:
        seen: set[Address] = set()
        revisions: list[MetaName] = []
        for folder, files in itertools.groupby(self._store.walk(), key=lambda file: file.name.rpartition("/")[0]):
            listed = list(files)
            report.files += len(listed)
            report.stored_bytes += sum(file.size for file in listed)
            address = _address_of(folder)
            if address is not None:
                inside = [StoredFile(file.name.rpartition("/")[2], file.size, file.modified) for file in listed]
                if any(file.name == ENTRY_FILE for file in inside):
                    report.entries += 1
                    seen.add(address)
                else:
                    report.pending += len(unnamed(address, None, inside))
                found = self._checks.findings(connection, address, inside)
                if found:
                    wrong[address] = found
            elif is_quarantine_folder(folder):
                report.quarantined += 1
            else:
                for file in listed:
                    revision = MetaName.parse(file.name)
                    if revision is None:
                        report.findings.append(Finding("unknown_file", file.name))
                    else:
                        revisions.append(revision)
        report.findings += meta_findings(connection, self._store, revisions)
        return seen

    def _rows(self, connection: Connection) -> Iterator[Address]:
        """Yield the addresses of all rows, page by page: a cursor held open would hold up a server's writes."""
        place = tuple_(EntryRow.project, EntryRow.kind, EntryRow.key)
        last = ("", "", "")
        while True:
            page = connection.execute(
                select(EntryRow.project, EntryRow.kind, EntryRow.key)
                .where(place > last)
                .order_by(EntryRow.project, EntryRow.kind, EntryRow.key)
                .limit(_PAGE)
            ).all()
            for row in page:
                yield Address.parse(*row)
            if len(page) < _PAGE:
                return
            last = (page[-1].project, page[-1].kind, page[-1].key)

    def _look(self, connection: Connection | None, address: Address, wrong: dict[Address, list[Finding]]) -> None:
        found = self._checks.findings(connection, address, self._store.files(address))
        if found:
            wrong[address] = found

    def _look_again(self, report: Report, wrong: dict[Address, list[Finding]]) -> None:
        if not wrong:
            return
        self._sleep(self._settle_seconds)
        again: dict[Address, list[Finding]] = {}
        if self._database is None:
            for address in wrong:
                self._look(None, address, again)
        else:
            # a new connection: what was committed meanwhile must be seen
            with self._database.reading() as connection:
                for address in wrong:
                    self._look(connection, address, again)
        for address, findings in wrong.items():
            report.findings += [finding for finding in findings if finding in again.get(address, ())]

    def _uploads(self, report: Report) -> None:
        for file in self._store.unfinished():
            if is_far(file.modified, self._upload_seconds, self._begun):
                report.findings.append(Finding("temporary", file.name, f"{file.size} bytes"))
            else:
                report.pending += 1


def _address_of(folder: str) -> Address | None:
    """Return the address whose folder this is, or None."""
    parts = folder.split("/")
    try:
        address = Address.parse(parts[0], parts[1], parts[-1]) if len(parts) > 1 else None
    except WireError:
        return None
    return address if address is not None and address.path == folder else None
