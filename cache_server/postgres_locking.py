"""Locks of several servers that share a PostgreSQL database: advisory locks, which end with the holder's connection."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import psycopg.errors
import structlog
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from cache_server.database.postgres import lock_id, postgres_engine, see_writable
from cache_server.errors import Problem
from cache_server.locking import ProcessLocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL

    from cache_server.address import Address

HOLD_SECONDS = 300.0
"""A holder that did nothing for this long on its lock's connection hangs: PostgreSQL ends the connection, and so the
lock. Far beyond any work under a lock; whoever wakes up after it finds out in `PostgresLocks.check`."""

_LOCK = text("SELECT pg_advisory_xact_lock(:id)")
_TRY_LOCK = text("SELECT pg_try_advisory_lock(:id)")

_log = structlog.get_logger("cache_server.locking")


class PostgresLocks:
    """`cache_server.locking.KeyLocks` of all servers on one PostgreSQL database.

    Each lock held is one open transaction on a connection of its own pool, so that the work under a lock never waits
    for a connection that another waiter has. Requests of this server for one key line up in the process first: at
    most one of them stands in PostgreSQL's queue.
    """

    def __init__(self, url: URL, *, timeout: float, connections: int) -> None:
        """``timeout``: seconds to wait for another holder; ``connections``: the most keys held at once."""
        self._here = ProcessLocks(timeout)
        self._engine = postgres_engine(
            url,
            connections=connections,
            statement_seconds=0,
            lock_seconds=timeout,
            idle_seconds=HOLD_SECONDS,
            pool_seconds=timeout,
        )
        self._held = threading.local()

    @contextlib.contextmanager
    def hold(self, address: Address) -> Iterator[None]:
        """Hold the key's lock. At the end `SQLAlchemyError` tells that it was lost meanwhile."""
        with self._here.hold(address), contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(self._engine.connect())
                connection.execute(_LOCK, {"id": lock_id(f"key/{address}")})
            except (OperationalError, PoolTimeoutError) as error:
                if isinstance(error, PoolTimeoutError) or isinstance(error.orig, psycopg.errors.LockNotAvailable):
                    raise Problem("busy", headers={"Retry-After": "1"}) from error
                raise
            self._held.connection = connection
            try:
                yield
            finally:
                self._held.connection = None
            # not reached after an exception: that ends the transaction too, and says more than a lost lock would
            connection.commit()

    def check(self) -> None:
        """See that the lock this thread holds still stands; raises `SQLAlchemyError` if it binds nobody now."""
        connection: Connection | None = getattr(self._held, "connection", None)
        if connection is not None:
            see_writable(connection)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


class PostgresDuty:
    """`cache_server.locking.Duty` of all servers on one PostgreSQL database: a lock held for as long as one lives."""

    def __init__(self, url: URL) -> None:
        self._engine = postgres_engine(url, connections=0, idle_seconds=0).execution_options(
            isolation_level="AUTOCOMMIT"
        )
        self._guard = threading.Lock()
        self._connection: Connection | None = None
        self._taken = False

    def is_ours(self) -> bool:
        """Return whether it is ours, taking it if nobody has it. `SQLAlchemyError` if the database does not answer."""
        with self._guard:
            if self._connection is not None:
                try:
                    return self._ask(self._connection)
                except SQLAlchemyError as error:
                    # the database was restarted, perhaps: what was ours is anybody's now
                    _log.info("the connection that holds the periodic work broke", error=str(error))
                    self._drop()
            self._connection = self._engine.connect()
            try:
                return self._ask(self._connection)
            except SQLAlchemyError:
                self._drop()
                raise

    def _ask(self, connection: Connection) -> bool:
        if self._taken:
            see_writable(connection)
        elif connection.execute(_TRY_LOCK, {"id": lock_id("duty")}).scalar_one():
            self._taken = True
            _log.info("this server does the periodic work from now on")
        return self._taken

    def _drop(self) -> None:
        connection, self._connection, self._taken = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                connection.close()

    def close(self) -> None:
        """Leave the duty to others."""
        with self._guard:
            self._drop()
