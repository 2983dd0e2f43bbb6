"""Stored plans: the entries that a run used, as clients recorded them, by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cache_server.database.models import PlanRow
from cache_server.errors import Problem
from client.errors import WireError
from client.names import check_digest, check_kind

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from cache_server.access import Actor
    from cache_server.database.engine import Database
    from cache_server.services.audit import Audit


class Plans:
    """Plans of projects. Blocks: worker threads only."""

    def __init__(self, database: Database, audit: Audit) -> None:
        self._database = database
        self._audit = audit

    def read(self, project: str, name: str) -> str | None:
        """Return the plan's JSON Lines, or None."""
        with self._database.transaction() as session:
            row = session.get(PlanRow, (project, name))
            return None if row is None else row.body

    def write(self, project: str, name: str, body: bytes, *, by: Actor) -> bool:
        """Store a plan under a name, in place of an earlier one; return whether the name is new.

        Raises `Problem` ``invalid`` for a line that names no entry.
        """
        try:
            text = body.decode()
            for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
                _check_line(number, line)
        except UnicodeDecodeError as error:
            raise Problem("invalid", "a plan is UTF-8 text, one JSON object a line") from error

        def write(session: Session) -> bool:
            row = session.get(PlanRow, (project, name))
            now = self._database.now(session)
            self._audit.change(session, by, "plan.write", project=project, detail={"plan": name})
            if row is None:
                session.add(PlanRow(project=project, name=name, body=text, updated=now))
                return True
            row.body, row.updated = text, now
            return False

        return self._database.upsert(write)


def _check_line(number: int, line: str) -> None:
    try:
        value = json.loads(line)
        check_kind(str(value["kind"]))
        check_digest(str(value["key"]))
    except (ValueError, TypeError, KeyError, RecursionError, WireError) as error:
        raise Problem("invalid", f"line {number} of the plan names no entry: {error}") from error
