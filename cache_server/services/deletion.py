"""Delete an entry on request, and remember it as revoked where it was poisoned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from cache_server.clock import rfc3339
from cache_server.database import entries
from cache_server.database.models import EntryState, RevocationRow

if TYPE_CHECKING:
    from cache_server.access import Actor
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.locking import KeyLocks
    from cache_server.services.audit import Audit
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.removal import Removal
    from client.wire import Entry, Json

REVOCATION_LIFE = 90 * 86400.0
"""Seconds for which clients are told to drop a poisoned entry."""


class Deletion:
    """Delete entries. Blocks: worker threads only."""

    def __init__(
        self, *, database: Database, locks: KeyLocks, catalogue: Catalogue, removal: Removal, audit: Audit
    ) -> None:
        self._database = database
        self._audit = audit
        self._locks = locks
        self._catalogue = catalogue
        self._removal = removal

    def delete(self, address: Address, *, poisoned: bool, by: Actor) -> bool:
        """Remove the entry; False if there is none. The key is a miss as soon as the row is marked."""
        if not self._mark(address, poisoned=poisoned, by=by):
            # the index may not know an entry that stands in the store
            with self._locks.hold(address):
                if self._catalogue.settle(address) is None:
                    return False
            if not self._mark(address, poisoned=poisoned, by=by):
                return False
        with self._locks.hold(address):
            found = self._catalogue.indexed(address)
            # while we waited for the lock a publisher may have finished the removal and published anew
            if found is not None and found.state is not EntryState.READY:
                self._removal.finish(address, found)
        return True

    def _mark(self, address: Address, *, poisoned: bool, by: Actor) -> bool:
        with self._database.transaction() as session:
            found = entries.indexed(session, address)
            if found is None or not entries.mark(session, address, EntryState.DELETING):
                return False
            if poisoned:
                session.add(self._revocation(address, found.entry, self._database.now(session)))
            detail = {"reason": "poisoned"} if poisoned else None
            self._audit.change(session, by, "entry.delete", address=address, detail=detail)
            return True

    @staticmethod
    def _revocation(address: Address, entry: Entry, now: float) -> RevocationRow:
        output = entry.output() or entry.outputs[0]
        return RevocationRow(
            project=address.project, kind=str(address.kind), key=address.key, sha256=output.sha256, time=now
        )

    def revoked(self, project: str) -> list[Json]:
        """Return the project's revocations that clients must still heed."""
        with self._database.reading() as connection:
            rows = connection.execute(
                select(RevocationRow.kind, RevocationRow.key, RevocationRow.sha256, RevocationRow.time)
                .where(
                    RevocationRow.project == project,
                    RevocationRow.time > self._database.now(connection) - REVOCATION_LIFE,
                )
                .order_by(RevocationRow.time)
            )
            return [{"kind": row.kind, "key": row.key, "sha256": row.sha256, "time": rfc3339(row.time)} for row in rows]

    def forget(self) -> None:
        """Remove revocations that are over."""
        with self._database.transaction() as session:
            before = self._database.now(session) - REVOCATION_LIFE
            session.execute(delete(RevocationRow).where(RevocationRow.time <= before))
