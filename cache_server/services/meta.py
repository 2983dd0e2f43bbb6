"""Policy, kept twice: rows in the database to ask, revisions in the store to outlive it.

A change writes ``meta/<table>/<row>/<revision>.json``, create-only, under the row's lock and before its transaction
commits: what a caller was told to be stored is in the store, and a rebuild finds it. A crash in between leaves a
revision that the database does not know; the caller was told nothing, and the next change goes above it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import structlog
from sqlalchemy import select

from cache_server.clock import rfc3339
from cache_server.database import policy
from cache_server.database.models import MetaRow
from cache_server.database.upsert import insert_into
from cache_server.stores.base import MetaName, StoreError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from cache_server.database.engine import Database
    from cache_server.stores.base import Store
    from client.wire import Json

_SCHEMA = 1
_UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)

_log = structlog.get_logger("cache_server.meta")


class _Revision(NamedTuple):
    revision: int
    value: Json | None
    project: str | None
    time: float


class Meta:
    """Rows of policy. Blocks: worker threads only."""

    def __init__(self, store: Store, database: Database) -> None:
        self._store = store
        self._database = database

    def write(self, session: Session, table: str, row: str, value: Json | None, *, project: str | None) -> int:
        """Write the row's next revision, within the caller's transaction, and return its number.

        ``value`` None removes the row. ``project``: the one it concerns, None for the whole server. `StoreError` if the
        store did not take it: the transaction must then fail.
        """
        stored = self._locked(session, table, row)
        now = self._database.now(session)
        revision = stored.revision + 1
        value = _still_revoked(table, json.loads(stored.document), value)
        while not self._store.create_meta(
            MetaName(table, row, revision), _encode(table, row, revision, value, project=project, time=now)
        ):
            # left by a crash before its commit, or by a database that was lost
            passed = [name for name in self._store.meta(table, row) if name.revision >= revision]
            revision = max(name.revision for name in passed) + 1
            if table in policy.IRREVOCABLE:
                for name in passed:
                    found = self._read(name)
                    value = _still_revoked(table, None if found is None else found.value, value)
        stored.revision = revision
        stored.project = project
        stored.document = json.dumps(value)
        stored.updated = now
        return revision

    @staticmethod
    def _locked(session: Session, table: str, row: str) -> MetaRow:
        # a row that is not there cannot be locked: make it first; a second writer waits here for the first
        named = {"table_name": table, "row_id": row}
        session.execute(
            insert_into(session, MetaRow)
            .values(**named, revision=0, project=None, document="null", updated=0.0)
            .on_conflict_do_nothing()
        )
        return session.execute(select(MetaRow).filter_by(**named).with_for_update()).scalar_one()

    def restore(self, only: str = "") -> int:
        """Bring the database up to the highest revision of every row in the store; return how many rows changed.

        A revision that cannot be read is passed over for the one before it, with a warning. What was revoked in any
        revision is revoked. ``only``: the rows of that table.
        """
        revisions: dict[tuple[str, str], list[MetaName]] = {}
        for name in self._store.meta(only):
            revisions.setdefault((name.table, name.row), []).append(name)
        changed = 0
        for (table, row), names in sorted(revisions.items()):
            with self._database.transaction() as session:
                stored = self._locked(session, table, row)
                newer = sorted((name for name in names if name.revision > stored.revision), reverse=True)
                changed += self._restore(stored, newer)
        return changed

    def _restore(self, stored: MetaRow, newer: list[MetaName]) -> bool:
        """Take the first of these revisions that can be read; of a row that can be revoked, read them all."""
        before = json.loads(stored.document)
        found = filter(None, map(self._read, newer))
        taken = next(found, None)
        if taken is None:
            return False
        value = taken.value
        if stored.table_name in policy.IRREVOCABLE:
            for earlier in [before, *(revision.value for revision in found)]:
                value = _still_revoked(stored.table_name, earlier, value)
        stored.revision, stored.project, stored.updated = taken.revision, taken.project, taken.time
        stored.document = json.dumps(value)
        return True

    def _read(self, name: MetaName) -> _Revision | None:
        raw = self._store.read_meta(name)
        try:
            return _decoded(name, raw)
        except _UNREADABLE as error:
            if raw is None or self._store.read_meta(name) != raw:
                # taking an older one for it could let in a token that was revoked
                raise StoreError(f"{name.path} is listed in the store, and cannot be read as it is") from error
            _log.warning("a revision of policy cannot be read and is passed over", path=name.path, reason=str(error))
            return None


def _decoded(name: MetaName, raw: bytes | None) -> _Revision:
    """Return what a revision says; raises one of `_UNREADABLE`."""
    found = json.loads(raw or b"")
    value, project, time = found["value"], found["project"], float(found["time_seconds"])
    if found["schema"] != _SCHEMA or not isinstance(value, dict | None) or not isinstance(project, str | None):
        raise ValueError("its members are of other types")
    return _Revision(name.revision, value, project, time)


def _still_revoked(table: str, earlier: Json | None, value: Json | None) -> Json | None:
    """Return ``value``, revoked if ``earlier`` is."""
    if table not in policy.IRREVOCABLE or not earlier or earlier.get("revoked") is None:
        return value
    return earlier if value is None else {**value, "revoked": earlier["revoked"]}


def _encode(table: str, row: str, revision: int, value: Json | None, *, project: str | None, time: float) -> bytes:
    return json.dumps(
        {
            "schema": _SCHEMA,
            "table": table,
            "row": row,
            "revision": revision,
            "project": project,
            "time": rfc3339(time),
            "time_seconds": time,
            "value": value,
        },
        indent=1,
    ).encode()
