"""Jobs that one server at a time runs, among all that share a database."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from cache_server.database.models import JobRow
from cache_server.database.upsert import insert_into

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.database.engine import Database

JOB_SECONDS = 60.0
"""A job is free again so long after its holder was last heard of: it died, or hangs."""


class Running:
    """The right to run a job, for as long as `renew` says so."""

    def __init__(self, database: Database, name: str, holder: str) -> None:
        self._database = database
        self._name = name
        self._holder = holder

    def renew(self) -> bool:
        """Go on for `JOB_SECONDS`; False if another server took the job over. Asked before every batch of work."""
        with self._database.transaction() as session:
            now = self._database.now(session)
            changed = session.execute(
                update(JobRow)
                .where(JobRow.name == self._name, JobRow.holder == self._holder)
                .values(expires=now + JOB_SECONDS)
                .returning(JobRow.name)
            )
            return changed.first() is not None


class Jobs:
    """Rows that say who runs which job. Blocks: worker threads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[Running | None]:
        """Take the job, or give None if another server, or another thread of this one, runs it."""
        holder = secrets.token_hex(16)
        with self._database.transaction() as session:
            now = self._database.now(session)
            row = self._locked(session, name)
            if row.expires > now:
                holder = ""
            else:
                row.holder, row.expires = holder, now + JOB_SECONDS
        if not holder:
            yield None
            return
        try:
            yield Running(self._database, name, holder)
        finally:
            self._end(name, holder)

    @staticmethod
    def _locked(session: Session, name: str) -> JobRow:
        session.execute(
            insert_into(session, JobRow)
            .values(name=name, holder="", expires=0.0, finished=0.0)
            .on_conflict_do_nothing()
        )
        return session.execute(select(JobRow).where(JobRow.name == name).with_for_update()).scalar_one()

    def _end(self, name: str, holder: str) -> None:
        with self._database.transaction() as session:
            now = self._database.now(session)
            session.execute(
                update(JobRow)
                .where(JobRow.name == name, JobRow.holder == holder)
                .values(holder="", expires=0.0, finished=now)
            )

    @staticmethod
    def finished(source: Connection | Session, name: str) -> float | None:
        """Return when the job last ended, in seconds since the epoch, or None."""
        found = source.execute(select(JobRow.finished).where(JobRow.name == name)).scalar()
        return found or None
