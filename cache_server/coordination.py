"""How servers that share a database keep out of each other's way: the lock of each key, the periodic work, wake-ups."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cache_server.locking import Duty, KeyLocks, ProcessLocks, SoleDuty
from cache_server.postgres_locking import PostgresDuty, PostgresLocks
from cache_server.services.postgres_waiting import PostgresWaiters
from cache_server.services.waiting import LocalWaiters, Waiters

if TYPE_CHECKING:
    from contextlib import ExitStack

    from cache_server.database.engine import Database
    from cache_server.settings import Settings


class Coordination(NamedTuple):
    """One server on SQLite needs locks and events of its own process only; several on PostgreSQL ask the database."""

    locks: KeyLocks
    waiters: Waiters
    duty: Duty

    @classmethod
    def open(cls, settings: Settings, database: Database, opening: ExitStack) -> Coordination:
        """Return what fits the database; what is to be closed is left to ``opening``."""
        if database.is_sqlite:
            return cls(ProcessLocks(settings.key_lock_seconds), LocalWaiters(), SoleDuty())
        locks = PostgresLocks(
            database.url, timeout=settings.key_lock_seconds, connections=max(settings.threads // 2, 2)
        )
        opening.callback(locks.close)
        duty = PostgresDuty(database.url)
        opening.callback(duty.close)
        waiters = PostgresWaiters(database, poll_seconds=settings.poll_seconds)
        waiters.start()
        opening.callback(waiters.stop)
        return cls(locks, waiters, duty)
