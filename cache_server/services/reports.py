"""What clients report at exit: hits in tiers this server never sees, and the compile seconds they saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import select

from cache_server.database.models import ReportedRow
from cache_server.errors import Problem
from client.names import Kind
from client.wire import MAX_INTEGER

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.database.engine import Database

_PLAIN = (
    "lookups",
    "misses",
    "compiles",
    "waits",
    "errors",
    "compile_seconds",
    "saved_seconds",
    "bytes_down",
    "bytes_up",
)
_HITS = ("memory", "disk", "remote")


class Reported(NamedTuple):
    """A running total."""

    project: str
    kind: str
    counter: str
    total: float


class Reports:
    """Running totals of clients' summaries."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, project: str, summary: Any) -> None:
        """Add one summary. Blocks. Raises `Problem` ``invalid`` for what is none."""
        by_kind = summary.get("by_kind") if isinstance(summary, dict) else None
        if not isinstance(by_kind, dict):
            raise Problem("invalid", "a report is a summary with its member by_kind")
        counts = {
            (str(kind), counter): value
            for kind in Kind
            for counter, value in _counts(by_kind.get(str(kind), {})).items()
            if value
        }

        def write(session: Session) -> None:
            for (kind, counter), value in counts.items():
                row = session.get(ReportedRow, (project, kind, counter), with_for_update=True)
                if row is None:
                    session.add(ReportedRow(project=project, kind=kind, counter=counter, total=value))
                else:
                    row.total += value

        self._database.upsert(write)

    @staticmethod
    def totals(connection: Connection) -> list[Reported]:
        """Return all totals."""
        statement = select(ReportedRow.project, ReportedRow.kind, ReportedRow.counter, ReportedRow.total).order_by(
            ReportedRow.project, ReportedRow.kind, ReportedRow.counter
        )
        return [Reported._make(row) for row in connection.execute(statement)]


def _counts(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise Problem("invalid", "counts are a JSON object")
    hits = value.get("hits", {})
    if not isinstance(hits, dict):
        raise Problem("invalid", "hits are a JSON object")
    return {
        **{name: _count(value.get(name, 0), name) for name in _PLAIN},
        **{f"{tier}_hits": _count(hits.get(tier, 0), tier) for tier in _HITS},
    }


def _count(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_INTEGER:
        raise Problem("invalid", f"{name} is no count")
    return float(value)
