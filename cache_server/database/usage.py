"""Reads and writes of how entries are used, and entries as collection and listing see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, case, delete, exists, func, select, tuple_, update

from cache_server.collection_plan import Held
from cache_server.collection_rules import Amount, Candidate, weight
from cache_server.database.entries import BATCH
from cache_server.database.models import EntryRow, EntryState, LeaseRow, LeaseState, UsageRow
from cache_server.database.upsert import insert_into
from client.names import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from sqlalchemy import ColumnElement, Connection
    from sqlalchemy.orm import Session

    from cache_server.address import Address
    from cache_server.collection_rules import Named

PAGE = 2000
"""Rows read at once by a walk over all entries."""

_SAME_ENTRY = and_(UsageRow.project == EntryRow.project, UsageRow.kind == EntryRow.kind, UsageRow.key == EntryRow.key)
_NAME = tuple_(EntryRow.project, EntryRow.kind, EntryRow.key)
_CANDIDATES = (
    select(
        EntryRow.project,
        EntryRow.kind,
        EntryRow.key,
        EntryRow.stored_bytes,
        EntryRow.compile_seconds,
        EntryRow.indexed,
        func.coalesce(EntryRow.label, ""),
        func.coalesce(EntryRow.compiler, ""),
        func.coalesce(EntryRow.compiler_version, ""),
        func.coalesce(UsageRow.hits, 0),
        func.coalesce(UsageRow.heat, 0.0),
        func.coalesce(UsageRow.last_used, 0.0),
    )
    .outerjoin(UsageRow, _SAME_ENTRY)
    # an expression, so that no index on the state is taken for it: nearly all rows are ready, and pages go by name
    .where(EntryRow.state.concat("") == EntryState.READY)
)


def add(session: Session, uses: Mapping[Named, int], now: float) -> None:
    """Add uses, by name. Additive, so any number of servers may do so; in one order, so that none waits for another."""
    statement = insert_into(session, UsageRow)
    new = statement.excluded
    upsert = statement.on_conflict_do_update(
        index_elements=[UsageRow.project, UsageRow.kind, UsageRow.key],
        set_={
            "hits": UsageRow.hits + new.hits,
            "heat": UsageRow.heat + new.heat,
            "last_used": case((UsageRow.last_used > new.last_used, UsageRow.last_used), else_=new.last_used),
        },
    )
    each = weight(now)
    session.connection().execute(
        upsert,
        [
            {"project": project, "kind": kind, "key": key, "hits": hits, "heat": hits * each, "last_used": now}
            for (project, kind, key), hits in sorted(uses.items())
        ],
    )


def walk(source: Connection | Session, project: str | None = None) -> Iterator[Candidate]:
    """Yield all ready entries, or those of one project, a page at a time: no transaction stays open meanwhile."""
    after: Named | None = None
    while True:
        found = page(source, after, PAGE, project=project)
        yield from found
        if len(found) < PAGE:
            return
        after = found[-1].named


def page(
    source: Connection | Session,
    after: Named | None,
    limit: int,
    *,
    project: str | None = None,
    kinds: Collection[str] | None = None,
    label: str | None = None,
    version: str | None = None,
) -> list[Candidate]:
    """Return up to ``limit`` ready entries that come after one, by name, of those that the other words select."""
    statement = _CANDIDATES.order_by(EntryRow.project, EntryRow.kind, EntryRow.key).limit(limit)
    if project is not None:
        statement = statement.where(EntryRow.project == project)
    if kinds is not None:
        statement = statement.where(EntryRow.kind.in_(sorted(kinds)))
    if label is not None:
        statement = statement.where(EntryRow.label == label)
    if version is not None:
        statement = statement.where(EntryRow.compiler_version == version)
    if after is not None:
        statement = statement.where(tuple_(*after) < _NAME)
    return [Candidate._make(row) for row in source.execute(statement)]


def candidate(source: Connection | Session, address: Address) -> Candidate | None:
    """Return a ready entry as the rules see it, or None."""
    row = source.execute(_CANDIDATES.where(*_at(address))).first()
    return None if row is None else Candidate._make(row)


def held(source: Connection | Session, project: str | None = None) -> list[Held]:
    """Return how much there is of each project and compiler version."""
    columns = (EntryRow.project, EntryRow.compiler, EntryRow.compiler_version)
    statement = select(*columns, func.sum(EntryRow.stored_bytes), func.count()).where(
        EntryRow.state == EntryState.READY
    )
    if project is not None:
        statement = statement.where(EntryRow.project == project)
    rows = source.execute(statement.group_by(*columns))
    return [Held(of, name or "", version or "", Amount(int(size), count)) for of, name, version, size, count in rows]


def amount(source: Connection | Session, project: str) -> Amount:
    """Return how much the project holds; answered from an index alone."""
    statement = select(func.coalesce(func.sum(EntryRow.stored_bytes), 0), func.count()).where(
        EntryRow.project == project, EntryRow.state == EntryState.READY
    )
    size, count = source.execute(statement).one()
    return Amount(int(size), count)


def leased(source: Connection | Session, now: float) -> frozenset[Named]:
    """Return the keys that are leased now."""
    rows = source.execute(
        select(LeaseRow.project, LeaseRow.kind, LeaseRow.key).where(
            LeaseRow.state == LeaseState.HELD, LeaseRow.expires > now
        )
    )
    return frozenset((row.project, row.kind, row.key) for row in rows)


def named_keys(source: Connection | Session, project: str, keys: Collection[str]) -> list[Named]:
    """Return where those of ``keys`` that have a ready entry stand; a key says its kind by itself."""
    wanted = sorted(keys)
    found: list[Named] = []
    for begin in range(0, len(wanted), BATCH):
        rows = source.execute(
            select(EntryRow.project, EntryRow.kind, EntryRow.key).where(
                EntryRow.project == project,
                EntryRow.kind.in_([str(kind) for kind in Kind]),
                EntryRow.key.in_(wanted[begin : begin + BATCH]),
                EntryRow.state == EntryState.READY,
            )
        )
        found.extend((row.project, row.kind, row.key) for row in rows)
    return found


def hits_by_namespace(source: Connection | Session) -> dict[tuple[str, str], int]:
    """Return the uses of entries that stand, by project and kind."""
    rows = source.execute(
        select(UsageRow.project, UsageRow.kind, func.sum(UsageRow.hits)).group_by(UsageRow.project, UsageRow.kind)
    )
    return {(project, kind): int(hits) for project, kind, hits in rows}


def tidy(session: Session, now: float) -> None:
    """Forget the use of entries that are gone, and set times that lie ahead to now.

    A use may be written after its entry went; and what a clock that ran ahead wrote would stay young until it is past.
    """
    session.execute(delete(UsageRow).where(~exists().where(_SAME_ENTRY)))
    session.execute(update(UsageRow).where(UsageRow.last_used > now).values(last_used=now))
    session.execute(update(EntryRow).where(EntryRow.indexed > now).values(indexed=now))


def _at(address: Address) -> tuple[ColumnElement[bool], ...]:
    return (EntryRow.project == address.project, EntryRow.kind == str(address.kind), EntryRow.key == address.key)
