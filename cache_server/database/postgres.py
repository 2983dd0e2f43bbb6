"""Connections to PostgreSQL: bounded in number, and in how long each can hold up anything else.

Each is to a server that takes writes. After a failover the primary of before may live on as a standby, or fenced off:
it answers, and a lock that it gives excludes nobody who asks the new one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import NullPool

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection
    from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
    from sqlalchemy.pool import ConnectionPoolEntry

_DRIVER = "postgresql+psycopg"
_NAMES = frozenset({"postgres", "postgresql", _DRIVER})

STATEMENT_SECONDS = 30.0
"""No statement of a request takes longer on a healthy database."""
LOCK_SECONDS = 10.0
"""For a row that another transaction holds: those are short."""
IDLE_SECONDS = 60.0
"""A transaction in which nothing happens this long belongs to a server that hangs: its locks are let go."""
POOL_SECONDS = 10.0
"""For a connection to become free."""

# A peer that vanished without a word (power, network) is noticed within half a minute on both ends: its locks end then
_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_SERVER_KEEPALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3}
_UNANSWERED_MS = 25_000
_READ_ONLY = "SHOW transaction_read_only"
_CONNECT_SECONDS = 5


def postgres_url(url: URL) -> URL:
    """Return ``url`` with our driver in it; raises `ConfigurationError` for any other database or driver."""
    if url.drivername not in _NAMES:
        raise ConfigurationError(
            f"--database {url.drivername!r} is not supported: take sqlite:////path/to/file or "
            "postgresql://user@host/name (psycopg is the driver)"
        )
    if not url.database:
        raise ConfigurationError("--database names no database of the PostgreSQL server: postgresql://user@host/name")
    return url.set(drivername=_DRIVER)


def lock_id(name: str) -> int:
    """Return the 64-bit number under which PostgreSQL knows the lock called ``name``.

    Advisory locks of a database are shared by all its users: numbers from a hash meet nobody else's.
    """
    return int.from_bytes(hashlib.sha256(f"neff-cache/{name}".encode()).digest()[:8], signed=True)


def see_writable(connection: Connection) -> None:
    """Return if the server still answers and takes writes; else raise `SQLAlchemyError`, the connection invalid."""
    if connection.exec_driver_sql(_READ_ONLY).scalar_one() == "on":
        connection.invalidate()
        raise DisconnectionError("the database server takes no writes any more: another one is the primary now")


def postgres_engine(
    url: URL,
    *,
    connections: int,
    statement_seconds: float = STATEMENT_SECONDS,
    lock_seconds: float = LOCK_SECONDS,
    idle_seconds: float = IDLE_SECONDS,
    pool_seconds: float = POOL_SECONDS,
) -> Engine:
    """Return an engine that opens up to ``connections`` as they are needed; 0: no pool, one for each use.

    Times are seconds; 0 for no limit. A connection that died meanwhile (the database was restarted), or whose server
    takes no writes any more, is replaced when it is next taken from the pool. With several hosts in the URL, the one
    that takes writes is connected to.
    """
    pool: dict[str, Any] = (
        {"pool_size": connections, "max_overflow": 0, "pool_timeout": pool_seconds}
        if connections
        else {"poolclass": NullPool}
    )
    engine = create_engine(
        url,
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "neff-cache",
            "tcp_user_timeout": _UNANSWERED_MS,
            "target_session_attrs": url.query.get("target_session_attrs", "read-write"),
            **_KEEPALIVE,
        },
        **pool,
    )
    limits = {
        "statement_timeout": round(statement_seconds * 1000),
        "lock_timeout": round(lock_seconds * 1000),
        "idle_in_transaction_session_timeout": round(idle_seconds * 1000),
        "tcp_user_timeout": _UNANSWERED_MS,
        **_SERVER_KEEPALIVE,
    }
    statements = "; ".join(f"SET {name} = {value}" for name, value in limits.items())

    @event.listens_for(engine, "connect")
    def _connected(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(statements)
        cursor.close()
        connection.commit()

    @event.listens_for(engine, "handle_error")
    def _failed(context: ExceptionContext) -> None:
        if isinstance(context.original_exception, psycopg.errors.ReadOnlySqlTransaction):
            context.is_disconnect = True  # all of the pool's connections are to that server

    if connections:
        event.listen(engine, "checkout", _checked_out)
    return engine


def _checked_out(connection: Any, _record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Have the pool replace a connection that is dead or takes no writes; costs what a ping costs."""
    found: psycopg.Connection = connection
    before = found.autocommit
    try:
        found.autocommit = True
        row = found.execute(_READ_ONLY).fetchone()
        found.autocommit = before
    except psycopg.Error as error:
        raise DisconnectionError(str(error)) from error
    if row != ("off",):
        raise DisconnectionError("the database server takes no writes any more")
