"""Policy, kept twice: rows in the database to ask, revisions in the store to outlive it.

A change writes ``meta/<table>/<row>/<revision>.json``, create-only, under the row's lock and before its transaction
commits: what a caller was told to be stored is in the store, and a rebuild finds it. A crash in between leaves a
revision that the database does not know; the caller was told nothing, and the next change goes above it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import select

from cache_server.clock import rfc3339
from cache_server.database.models import MetaRow
from cache_server.database.upsert import insert_into
from cache_server.stores.base import MetaName

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from cache_server.database.engine import Database
    from cache_server.stores.base import Store
    from client.wire import Json

_SCHEMA = 1

_log = structlog.get_logger("cache_server.meta")


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
        while not self._store.create_meta(
            MetaName(table, row, revision), _encode(table, row, revision, value, project=project, time=now)
        ):
            # left by a crash before its commit, or by a database that was lost
            revision = max(name.revision for name in self._store.meta(table, row)) + 1
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

    def restore(self) -> int:
        """Bring the database up to the highest revision of every row in the store; return how many rows changed.

        A revision that cannot be read is passed over for the one before it, with a warning.
        """
        revisions: dict[tuple[str, str], list[MetaName]] = {}
        for name in self._store.meta():
            revisions.setdefault((name.table, name.row), []).append(name)
        changed = 0
        for (table, row), names in sorted(revisions.items()):
            with self._database.transaction() as session:
                stored = self._locked(session, table, row)
                newer = sorted((name for name in names if name.revision > stored.revision), reverse=True)
                changed += any(self._take(stored, name) for name in newer)
        return changed

    def _take(self, stored: MetaRow, name: MetaName) -> bool:
        raw = self._store.read_meta(name)
        try:
            found = json.loads(raw or b"")
            value, project, time = found["value"], found["project"], float(found["time_seconds"])
            if found["schema"] != _SCHEMA or not isinstance(value, dict | None) or not isinstance(project, str | None):
                raise ValueError("its members are of other types")  # noqa: TRY301 - joins the other reasons below
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("a revision of policy cannot be read and is passed over", path=name.path, reason=str(error))
            return False
        stored.revision, stored.project, stored.updated = name.revision, project, time
        stored.document = json.dumps(value)
        return True


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
