"""Reads and writes of the entry index. Statements are built once; callers bring connection or session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import bindparam, delete, func, select, tuple_, update

from cache_server.address import Address
from cache_server.database.models import EntryRow, EntryState, UsageRow
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection
    from sqlalchemy.orm import Session


class Hit(NamedTuple):
    """What serves ``model.neff`` of a ready entry."""

    header: str | None
    sha256: str | None
    size: int
    encoding: str
    stored_size: int


@dataclass(frozen=True, slots=True)
class Indexed:
    """An index row: how far the entry is, and the entry."""

    state: EntryState
    entry: Entry


BATCH = 400
"""Keys per statement: two parameters each, below the 999 that older SQLite builds allow."""

_BY_ADDRESS = (
    EntryRow.project == bindparam("project"),
    EntryRow.kind == bindparam("kind"),
    EntryRow.key == bindparam("key"),
)
_HIT = select(
    EntryRow.header, EntryRow.neff_sha256, EntryRow.neff_size, EntryRow.neff_encoding, EntryRow.neff_stored_size
).where(*_BY_ADDRESS, EntryRow.state == EntryState.READY)
_DOCUMENT = select(EntryRow.document).where(*_BY_ADDRESS, EntryRow.state == EntryState.READY)
_STATE = select(EntryRow.state).where(*_BY_ADDRESS)
_INDEXED = select(EntryRow.state, EntryRow.document).where(*_BY_ADDRESS)


def hit(connection: Connection, address: Address) -> Hit | None:
    """Return what serves the entry's ``model.neff``, or None."""
    row = connection.execute(_HIT, address._asdict()).first()
    return None if row is None else Hit._make(row)


def document(connection: Connection, address: Address) -> str | None:
    """Return the entry.json of a ready entry, or None."""
    return connection.execute(_DOCUMENT, address._asdict()).scalar()


def is_indexed(connection: Connection, address: Address) -> bool:
    """Return whether the key has a row, whatever its state."""
    return connection.execute(_STATE, address._asdict()).first() is not None


def indexed(source: Connection | Session, address: Address) -> Indexed | None:
    """Return the row of the key, whatever its state, or None."""
    row = source.execute(_INDEXED, address._asdict()).first()
    return None if row is None else Indexed(EntryState(row.state), Entry.from_json(json.loads(row.document)))


def documents(connection: Connection, project: str, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return entry.json by (kind, key) for those of ``wanted`` that are ready."""
    found: dict[tuple[str, str], str] = {}
    for begin in range(0, len(wanted), BATCH):
        rows = connection.execute(
            select(EntryRow.kind, EntryRow.key, EntryRow.document).where(
                EntryRow.project == project,
                tuple_(EntryRow.kind, EntryRow.key).in_(wanted[begin : begin + BATCH]),
                EntryRow.state == EntryState.READY,
            )
        )
        found.update({(row.kind, row.key): row.document for row in rows})
    return found


def insert(session: Session, entry: Entry, *, now: float, checked: float) -> None:
    """Add a ready row. ``checked``: when all outputs were last found right; 0 has the scrub look at them first."""
    main = entry.output()
    session.add(
        EntryRow(
            project=entry.project,
            kind=str(entry.kind),
            key=entry.key,
            state=EntryState.READY,
            document=json.dumps(entry.to_json(), separators=(",", ":")),
            header=entry.to_header(),
            neff_sha256=main and main.sha256,
            neff_size=main and main.size,
            neff_encoding=main and main.encoding,
            neff_stored_size=main and main.stored_size,
            stored_bytes=sum(output.stored_size for output in entry.outputs),
            compile_seconds=entry.compile_seconds,
            indexed=now,
            checked=checked,
            **facts(entry)._asdict(),
        )
    )


class Facts(NamedTuple):
    """What policy asks of an entry, as columns; cut to what they hold, empty where the entry says nothing."""

    label: str
    compiler: str
    compiler_version: str


def facts(entry: Entry) -> Facts:
    """Return the label of an entry's producer, and the compiler that its key document names."""
    document = entry.key_document or {}
    compiler = document.get("compiler")
    if not isinstance(compiler, dict):
        # a foreign entry's document has no name for it
        compiler = {"version": document.get("compiler_version", "")}
    return Facts(
        column_text(entry.producer.label, 255),
        column_text(compiler.get("name", ""), 64),
        column_text(compiler.get("version", ""), 128),
    )


def column_text(value: object, length: int) -> str:
    """Return a text as every database can hold it: without NUL and without half a surrogate pair."""
    text = value if isinstance(value, str) else ""
    return text[:length].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def fill_facts(session: Session, limit: int) -> int:
    """Fill in the facts of up to ``limit`` rows that an earlier version's server inserted; return how many."""
    rows = session.scalars(select(EntryRow).where(EntryRow.label.is_(None)).limit(limit)).all()
    for row in rows:
        row.label, row.compiler, row.compiler_version = facts(Entry.from_json(json.loads(row.document)))
    return len(rows)


def mark(session: Session, address: Address, state: EntryState) -> bool:
    """Move a ready row to a state of removal; False if there is no ready row."""
    changed = session.execute(
        update(EntryRow)
        .where(*_at(address), EntryRow.state == EntryState.READY)
        .values(state=state)
        .returning(EntryRow.key)
    )
    return changed.first() is not None


def remove(session: Session, address: Address) -> None:
    """Remove the row, and what is known of the entry's use."""
    session.execute(delete(EntryRow).where(*_at(address)))
    session.execute(
        delete(UsageRow).where(
            UsageRow.project == address.project, UsageRow.kind == str(address.kind), UsageRow.key == address.key
        )
    )


def every(connection: Connection) -> list[Address]:
    """Return the keys of all ready entries."""
    rows = connection.execute(
        select(EntryRow.project, EntryRow.kind, EntryRow.key).where(EntryRow.state == EntryState.READY)
    )
    return [Address.parse(*row) for row in rows]


def being_removed(connection: Connection) -> list[Address]:
    """Return the keys whose removal was begun and not finished."""
    rows = connection.execute(
        select(EntryRow.project, EntryRow.kind, EntryRow.key).where(EntryRow.state != EntryState.READY)
    )
    return [Address.parse(*row) for row in rows]


class Totals(NamedTuple):
    """Ready entries of one namespace: how many, bytes as stored, seconds their compilers took."""

    project: str
    kind: str
    entries: int
    stored_bytes: int
    compile_seconds: float


_TOTALS = (
    select(
        EntryRow.project,
        EntryRow.kind,
        func.count(),
        func.coalesce(func.sum(EntryRow.stored_bytes), 0),
        func.coalesce(func.sum(EntryRow.compile_seconds), 0.0),
    )
    .where(EntryRow.state == EntryState.READY)
    .group_by(EntryRow.project, EntryRow.kind)
    .order_by(EntryRow.project, EntryRow.kind)
)


def totals(connection: Connection) -> list[Totals]:
    """Return the totals of every namespace that has entries."""
    return [
        Totals(project, kind, entries, int(stored), float(seconds))
        for project, kind, entries, stored, seconds in connection.execute(_TOTALS)
    ]


def _at(address: Address) -> tuple[ColumnElement[bool], ...]:
    return (EntryRow.project == address.project, EntryRow.kind == str(address.kind), EntryRow.key == address.key)
