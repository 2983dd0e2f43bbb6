"""Connections to PostgreSQL: bounded in number, and in how long each can hold up anything else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.pool import NullPool

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import URL
    from sqlalchemy.engine.interfaces import DBAPIConnection
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

    Times are seconds; 0 for no limit. A connection that died meanwhile (the database was restarted) is replaced when
    it is next taken from the pool.
    """
    pool: dict[str, Any] = (
        {"pool_size": connections, "max_overflow": 0, "pool_timeout": pool_seconds, "pool_pre_ping": True}
        if connections
        else {"poolclass": NullPool}
    )
    engine = create_engine(
        url,
        connect_args={
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "neff-cache",
            "tcp_user_timeout": _UNANSWERED_MS,
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

    return engine
