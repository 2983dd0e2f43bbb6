"""Reads and writes of leases and failures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, delete, func, select, tuple_, update

from cache_server.database.entries import BATCH
from cache_server.database.models import FailureRow, LeaseRow, LeaseState
from cache_server.lease_rules import FAILURE_LIFE, PastFailure, Running
from client.errors import Failure
from client.wire import Holder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.address import Address

_BY_ADDRESS = (
    LeaseRow.project == bindparam("project"),
    LeaseRow.kind == bindparam("kind"),
    LeaseRow.key == bindparam("key"),
)
_NEWEST = select(LeaseRow.generation, LeaseRow.state, LeaseRow.holder, LeaseRow.since, LeaseRow.expires).where(
    *_BY_ADDRESS
)
_FAILURES = (
    select(
        FailureRow.generation,
        FailureRow.failure_class,
        FailureRow.text,
        FailureRow.log,
        FailureRow.host,
        FailureRow.time,
    )
    .where(
        FailureRow.project == bindparam("project"),
        FailureRow.kind == bindparam("kind"),
        FailureRow.key == bindparam("key"),
        FailureRow.time > bindparam("after"),
    )
    .order_by(FailureRow.time, FailureRow.id)
)


def running(source: Connection | Session, address: Address, now: float) -> Running | None:
    """Return the generation that holds the key now, or None."""
    held = newest_held(source, address)
    return held if held is not None and held.expires > now else None


def newest_held(source: Connection | Session, address: Address) -> Running | None:
    """Return the generation that was given the key last and has not given it back; it may have run out."""
    row = source.execute(_NEWEST, address._asdict()).first()
    if row is None or row.state != LeaseState.HELD:
        return None
    return Running(row.generation, Holder.from_json(json.loads(row.holder)), row.since, row.expires)


def failures(source: Connection | Session, address: Address, now: float) -> list[PastFailure]:
    """Return the key's failures that still matter, oldest first."""
    rows = source.execute(_FAILURES, {**address._asdict(), "after": now - FAILURE_LIFE})
    return [
        PastFailure(row.generation, Failure(row.failure_class, row.text, row.log), row.host, row.time) for row in rows
    ]


def newest(session: Session, address: Address) -> LeaseRow | None:
    """Return the key's lease row, locked until the transaction ends, or None."""
    return session.execute(
        select(LeaseRow).where(*_BY_ADDRESS).with_for_update(), address._asdict()
    ).scalar_one_or_none()


def end(session: Session, address: Address) -> None:
    """End a running generation of the key, if there is one, and forget the failures before: there is an entry now."""
    session.execute(
        delete(FailureRow).where(
            FailureRow.project == address.project,
            FailureRow.kind == str(address.kind),
            FailureRow.key == address.key,
        )
    )
    session.execute(
        update(LeaseRow)
        .where(
            LeaseRow.project == address.project,
            LeaseRow.kind == str(address.kind),
            LeaseRow.key == address.key,
            LeaseRow.state == LeaseState.HELD,
        )
        .values(state=LeaseState.PUBLISHED)
    )


def add_failure(session: Session, address: Address, past: PastFailure) -> None:
    """Remember a failure. Text is cut to what the wire carries, and to what every database can hold."""
    value = past.failure.to_json()
    session.add(
        FailureRow(
            project=address.project,
            kind=str(address.kind),
            key=address.key,
            generation=past.generation,
            failure_class=value["class"],
            text=_storable(value["text"]),
            log=_storable(value["log"]),
            host=_storable(past.host),
            time=past.time,
        )
    )


def _storable(text: str) -> str:
    # PostgreSQL holds no NUL; no database holds half a surrogate pair
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def held_keys(
    connection: Connection, project: str, wanted: Sequence[tuple[str, str]], now: float
) -> list[tuple[str, str]]:
    """Return those (kind, key) of ``wanted`` that somebody compiles now."""
    held: list[tuple[str, str]] = []
    for begin in range(0, len(wanted), BATCH):
        rows = connection.execute(
            select(LeaseRow.kind, LeaseRow.key).where(
                LeaseRow.project == project,
                tuple_(LeaseRow.kind, LeaseRow.key).in_(wanted[begin : begin + BATCH]),
                LeaseRow.state == LeaseState.HELD,
                LeaseRow.expires > now,
            )
        )
        held.extend((row.kind, row.key) for row in rows)
    return held


def count_held(connection: Connection, now: float) -> int:
    """Return how many leases run now."""
    statement = select(func.count()).where(LeaseRow.state == LeaseState.HELD, LeaseRow.expires > now)
    return connection.execute(statement).scalar_one()


def count_held_by(session: Session, owner: str, now: float) -> int:
    """Return how many leases of one owner run now."""
    statement = select(func.count()).where(
        LeaseRow.state == LeaseState.HELD, LeaseRow.expires > now, LeaseRow.owner == owner
    )
    return session.execute(statement).scalar_one()


def held_by_project(connection: Connection, now: float) -> dict[str, int]:
    """Return how many leases run now in each project that has any."""
    statement = (
        select(LeaseRow.project, func.count())
        .where(LeaseRow.state == LeaseState.HELD, LeaseRow.expires > now)
        .group_by(LeaseRow.project)
    )
    return {project: int(count) for project, count in connection.execute(statement)}


def forget(session: Session, *, now: float, lease_life: float) -> None:
    """Remove failures without effect, and leases that ended or ran out ``lease_life`` seconds ago or more.

    A key whose lease row is gone starts from the clock again, which is above every generation it ever had.
    """
    session.execute(delete(FailureRow).where(FailureRow.time <= now - FAILURE_LIFE))
    session.execute(delete(LeaseRow).where(LeaseRow.expires <= now - lease_life))
