"""Reads and writes of the scrub: which entries are due, and how far a run is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import delete, exists, func, select, tuple_, update

from cache_server.address import Address
from cache_server.database.entries import BATCH
from cache_server.database.models import EntryRow, EntryState, ScrubRow, SuspicionRow
from cache_server.database.upsert import insert_into

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection
    from sqlalchemy.orm import Session

_ONLY = 1
_PAGE = 64
_ORDER = (EntryRow.checked, EntryRow.project, EntryRow.kind, EntryRow.key)

AGAIN_SECONDS = 600.0
"""A second look comes this long after the first: longer than most stores and proxies are in trouble."""

REST_SECONDS = 600.0
"""For how long a scrub rests that stopped because too much in a row could not be verified."""


class Due(NamedTuple):
    """An entry to be verified: where it is, its entry.json, and when it was last found right."""

    address: Address
    document: str
    checked: float


@dataclass
class Progress:
    """How far a run is. Times are seconds since the epoch by the database's clock; ``ended`` None: it goes on."""

    horizon: float
    started: float
    ended: float | None = None
    entries: int = 0
    bytes_read: int = 0
    quarantined: int = 0
    unreadable: int = 0
    stopped: float | None = None
    reason: str | None = None

    def counts(self) -> dict[str, int]:
        """Return what was counted."""
        return {name: getattr(self, name) for name in ("entries", "bytes_read", "quarantined", "unreadable")}


class Suspected(NamedTuple):
    """An output that one look found wrong: what it found, and when."""

    address: Address
    sha256: str
    found: str
    time: float


def _is_due(before: float, now: float) -> ColumnElement[bool]:
    # a time in the future was written down under a wrong clock, and says nothing
    return (
        (EntryRow.state == EntryState.READY)
        & ((EntryRow.checked < before) | (EntryRow.checked > now))
        # those are for the second look
        & ~exists().where(
            SuspicionRow.project == EntryRow.project,
            SuspicionRow.kind == EntryRow.kind,
            SuspicionRow.key == EntryRow.key,
        )
    )


def due(connection: Connection, *, before: float, now: float, after: Due | None) -> list[Due]:
    """Return some ready entries last found right before ``before``, oldest first, those up to ``after`` left out."""
    statement = (
        select(EntryRow.project, EntryRow.kind, EntryRow.key, EntryRow.document, EntryRow.checked)
        .where(_is_due(before, now))
        .order_by(*_ORDER)
        .limit(_PAGE)
    )
    if after is not None:
        statement = statement.where(tuple_(*_ORDER) > (after.checked, *map(str, after.address)))
    return [
        Due(Address.parse(row.project, row.kind, row.key), row.document, row.checked)
        for row in connection.execute(statement)
    ]


def found_right(session: Session, addresses: Sequence[Address], when: float) -> None:
    """Note that all outputs of the entries were found right at ``when``."""
    for begin in range(0, len(addresses), BATCH):
        place = tuple_(EntryRow.project, EntryRow.kind, EntryRow.key)
        named = [(address.project, str(address.kind), address.key) for address in addresses[begin : begin + BATCH]]
        session.execute(
            update(EntryRow)
            .where(place.in_(named), EntryRow.state == EntryState.READY)
            .values(checked=when)
            .execution_options(synchronize_session=False)
        )


def request(session: Session, now: float) -> Progress:
    """Make all entries that stand now due: a run that goes on takes them in, or a new one begins."""
    row = session.get(ScrubRow, _ONLY, with_for_update=True)
    if row is None or row.ended is not None:
        return _start(session, row, horizon=now, now=now)
    row.horizon = max(row.horizon, now)
    row.stopped = row.reason = None
    return _progress(row)


def begin(session: Session, *, now: float, due_before: float | None) -> Progress | None:
    """Return the run that goes on, or a new one for entries that are due by themselves, or None.

    One that stopped goes on after a rest, one that ended for second looks that have become due.
    """
    row = session.get(ScrubRow, _ONLY, with_for_update=True)
    if row is not None and row.stopped is not None:
        if 0 <= now - row.stopped < REST_SECONDS:
            return None
        row.stopped = row.reason = None
    if row is not None and (row.ended is None or due_again(session, now)):
        row.ended = None
        return _progress(row)
    if due_before is None:
        return None
    if not session.scalar(select(exists().where(_is_due(due_before, now)))):
        return None
    return _start(session, row, horizon=due_before, now=now)


def save(session: Session, progress: Progress, *, ended: float | None) -> Progress:
    """Write down how far the run is; return it with the horizon as it is now. It ends only if nothing became due."""
    row = session.get(ScrubRow, _ONLY, with_for_update=True)
    if row is None:
        # the database was rebuilt underneath
        row = ScrubRow(id=_ONLY, horizon=progress.horizon, started=progress.started)
        session.add(row)
    for name, value in progress.counts().items():
        setattr(row, name, value)
    row.ended = ended if row.horizon <= progress.horizon else None
    row.stopped, row.reason = progress.stopped, progress.reason
    return _progress(row)


def progress(connection: Connection) -> Progress | None:
    """Return the run that goes on, or the last one, or None."""
    row = connection.execute(select(ScrubRow.__table__)).first()
    return None if row is None else _progress(row)


def _start(session: Session, row: ScrubRow | None, *, horizon: float, now: float) -> Progress:
    if row is None:
        row = ScrubRow(id=_ONLY)
        session.add(row)
    row.horizon, row.started, row.ended = horizon, now, None
    row.stopped = row.reason = None
    row.entries = row.bytes_read = row.quarantined = row.unreadable = 0
    return _progress(row)


def _progress(row: Any) -> Progress:
    return Progress(
        row.horizon,
        row.started,
        row.ended,
        row.entries,
        row.bytes_read,
        row.quarantined,
        row.unreadable,
        row.stopped,
        row.reason,
    )


def suspect(session: Session, item: Suspected) -> None:
    """Note what a look found wrong, in place of what an earlier one did."""
    values = {"found": item.found, "time": item.time}
    session.execute(
        insert_into(session, SuspicionRow)
        .values(**_place(item), **values)
        .on_conflict_do_update(index_elements=list(_place(item)), set_=values)
    )


def clear(session: Session, item: Suspected) -> None:
    """Forget a suspicion that was judged."""
    session.execute(delete(SuspicionRow).filter_by(**_place(item)))


def due_again(source: Connection | Session, now: float) -> list[Suspected]:
    """Return some outputs whose second look is due, the oldest suspicion first."""
    rows = source.execute(
        select(SuspicionRow.__table__)
        .where((SuspicionRow.time <= now - AGAIN_SECONDS) | (SuspicionRow.time > now))
        .order_by(SuspicionRow.time)
        .limit(_PAGE)
    )
    return [Suspected(Address.parse(row.project, row.kind, row.key), row.sha256, row.found, row.time) for row in rows]


def count_suspected(connection: Connection) -> int:
    """Return how many outputs wait for their second look."""
    return connection.execute(select(func.count()).select_from(SuspicionRow)).scalar_one()


def _place(item: Suspected) -> dict[str, str]:
    address = item.address
    return {"project": address.project, "kind": str(address.kind), "key": address.key, "sha256": item.sha256}
