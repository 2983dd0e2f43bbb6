"""The audit trail: who changed what, and when by the database's clock.

A row is written in the transaction of the change itself: there is no change without its row, and no row of a change
that did not happen. Rows are in the database alone, not in the store: the trail of a database that was lost is lost,
unless its backup or the access log has it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import delete, insert, or_, select

from cache_server.clock import rfc3339
from cache_server.database.models import AuditRow

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.orm import Session

    from cache_server.access import Actor
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from client.wire import Json

MAX_PAGE = 1000
_MAX_ACTOR = 255
_TRIMMED_AT_ONCE = 10_000
"""Rows of one transaction: on SQLite it holds up every other writer."""


_INSERT = insert(AuditRow.__table__)  # type: ignore[arg-type] # declared as a FromClause, and always a Table


class Wanted(NamedTuple):
    """Which rows are asked for; None leaves a part open. ``since``: seconds since the epoch. ``before``: a row's id."""

    project: str | None = None
    action: str | None = None
    actor: str | None = None
    since: float | None = None
    before: int | None = None


class Audit:
    """Record changes, and read what was recorded. Blocks: worker threads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self,
        session: Session,
        *,
        actor: str,
        action: str,
        project: str | None = None,
        kind: str | None = None,
        key: str | None = None,
        detail: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        """Add a row in the caller's transaction.

        ``actor`` is how logs name the caller; ``action`` such as ``entry.publish``: what it is about, then the verb.
        ``detail`` holds plain JSON values.
        """
        row = {
            "time": self._database.now(session),
            "actor": _shown(actor),
            "action": action,
            "project": project,
            "kind": None if kind is None else str(kind),
            "key": key,
            "detail": json.dumps(detail) if detail else None,
            "request_id": request_id,
        }
        # nobody wants the row back: an object of the session would cost a publish three times as much
        session.execute(_INSERT, row)

    def change(
        self,
        session: Session,
        by: Actor,
        action: str,
        *,
        address: Address | None = None,
        project: str | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        """Add a row for what ``by`` does to an entry, to a project, or to the whole server."""
        self.record(
            session,
            actor=by.name,
            action=action,
            project=project if address is None else address.project,
            kind=None if address is None else address.kind,
            key=None if address is None else address.key,
            detail=detail,
            request_id=by.request_id,
        )

    def page(self, wanted: Wanted, limit: int) -> list[Json]:
        """Return the newest rows that are wanted, at most ``limit``; the id of the last one leads to the page after."""
        with self._database.reading() as connection:
            return [_to_json(row) for row in connection.execute(_statement(wanted).limit(limit))]

    def trim(self, days: float) -> int:
        """Remove rows older than so many days; return how many."""
        removed, trimmed = 0, _TRIMMED_AT_ONCE
        while trimmed == _TRIMMED_AT_ONCE:
            with self._database.transaction() as session:
                before = self._database.now(session) - days * 86400.0
                old = select(AuditRow.id).where(AuditRow.time < before).limit(_TRIMMED_AT_ONCE).scalar_subquery()
                gone = session.execute(delete(AuditRow).where(AuditRow.id.in_(old)).returning(AuditRow.id))
                trimmed = len(gone.all())
            removed += trimmed
        return removed


def _shown(actor: str) -> str:
    """Return a name that fits its column: one from a foreign issuer may be of any length and hold anything."""
    return "".join(char if char.isprintable() else "?" for char in actor[:_MAX_ACTOR])


def _statement(wanted: Wanted) -> Select[Any]:
    statement = select(AuditRow.__table__).order_by(AuditRow.id.desc())
    if wanted.project is not None:
        statement = statement.where(AuditRow.project == wanted.project)
    if wanted.action is not None:
        # `entry` asks for all that happens to entries
        statement = statement.where(
            or_(AuditRow.action == wanted.action, AuditRow.action.startswith(f"{wanted.action}.", autoescape=True))
        )
    if wanted.actor is not None:
        # a token's label, with or without its id behind it
        statement = statement.where(
            or_(AuditRow.actor == wanted.actor, AuditRow.actor.startswith(f"{wanted.actor} (", autoescape=True))
        )
    if wanted.since is not None:
        statement = statement.where(AuditRow.time >= wanted.since)
    if wanted.before is not None:
        statement = statement.where(AuditRow.id < wanted.before)
    return statement


def _to_json(row: Any) -> Json:
    return {
        "id": row.id,
        "time": rfc3339(row.time),
        "actor": row.actor,
        "action": row.action,
        "project": row.project,
        "kind": row.kind,
        "key": row.key,
        "detail": {} if row.detail is None else json.loads(row.detail),
        "request_id": row.request_id,
    }
