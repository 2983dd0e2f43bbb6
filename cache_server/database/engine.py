"""The database: transactions, single reads, and the clock that leases go by."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from sqlalchemy import Engine, create_engine, delete, event, false, text
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from cache_server.database.models import LeaseRow
from cache_server.database.postgres import postgres_engine, postgres_url
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from sqlalchemy import URL, Connection
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

    Clock = Callable[[Connection], float]

_Result = TypeVar("_Result")

_BUSY_MS = 10_000


def host_clock(_connection: Connection) -> float:
    """Return this host's time: SQLite runs inside this process, so its clock is ours."""
    return time.time()


def server_clock(connection: Connection) -> float:
    """Return the database server's time, the same for all servers that share it."""
    return float(connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())")))


_PASSING_STATES = ("08", "53", "55", "57", "58")
"""Classes of SQLSTATE: no connection, no resources, not in a state to, stopped by an operator, an error below it."""
_PASSING_WORDS = (
    "starting up",
    "shutting down",
    "not yet accepting",
    "not accepting",
    "in recovery",
    "too many",
    "slots",
)
_PASSING_CODES = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL")


def comes_back(error: SQLAlchemyError) -> bool:
    """Return whether a database that failed like that may be there again without anybody mending anything.

    A server that takes no connection says why in words alone, in the language that it was set up with; what it says
    in another one than English, but for a refused connection, counts as for an operator to mend.
    """
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, (OperationalError, InterfaceError)):
        return False
    cause = error.orig
    code: str = getattr(cause, "sqlite_errorname", "") or ""
    if code:
        return code.startswith(_PASSING_CODES)
    state: str | None = getattr(cause, "sqlstate", None)
    if state:
        return state.startswith(_PASSING_STATES)
    text = str(cause)
    return "FATAL" not in text or any(words in text for words in _PASSING_WORDS)


class Connections(NamedTuple):
    """A pool's connections: in use now, and the most there may be."""

    used: int
    limit: int


class Database:
    """SQLite or PostgreSQL behind one face.

    Transactions run on worker threads. Single reads by primary key may be asked for from the event loop (`read`):
    on SQLite they take microseconds and run at once on a kept connection; elsewhere they go to a worker thread.
    """

    def __init__(self, url: URL, *, clock: Clock | None = None, connections: int = 16) -> None:
        """Open nothing yet. ``connections``: the most that transactions and reads hold at once on PostgreSQL.

        Raises `ConfigurationError` for a database of another kind.
        """
        self.is_sqlite = url.get_backend_name() == "sqlite"
        if self.is_sqlite and url.database in {None, "", ":memory:"}:
            raise ConfigurationError("--database names no file: SQLite in memory would forget every lease; give a path")
        self.url = url if self.is_sqlite else postgres_url(url)
        self._clock: Clock = clock or (host_clock if self.is_sqlite else server_clock)
        self._kept: Connection | None = None
        # SQLite has one writer: waiting here is fair and free, waiting in SQLite is sleeping and trying again
        self._one_writer: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        )
        if self.is_sqlite:
            self.engine = create_engine(self.url, pool_size=connections)
            self._readers = create_engine(self.url, isolation_level="AUTOCOMMIT", pool_size=connections)
            _prepare_sqlite(self.engine)
            event.listen(self.engine, "begin", _begin_immediate)
            _prepare_sqlite(self._readers)
        else:
            self.engine = postgres_engine(self.url, connections=connections)
            self._readers = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def path(self) -> Path | None:
        """The SQLite file, or None."""
        return Path(self.url.database) if self.is_sqlite and self.url.database else None

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    def now(self, connection: Connection | Session) -> float:
        """Return seconds since the epoch by the clock that leases go by."""
        return self._clock(connection.connection() if isinstance(connection, Session) else connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run a read-write transaction: committed at the end, rolled back by an exception. Worker threads only."""
        with self._one_writer, Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def upsert(self, work: Callable[[Session], _Result]) -> _Result:
        """Run ``work``, which adds a row or changes it, in a transaction; a second time if another server added it."""
        try:
            with self.transaction() as session:
                return work(session)
        except IntegrityError:
            with self.transaction() as session:
                return work(session)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection for reads that need no transaction. Worker threads only."""
        with self._readers.connect() as connection:
            yield connection

    async def read(self, work: Callable[[Connection], _Result], workers: Executor) -> _Result:
        """Run one quick read from the event loop. ``work`` must consume its result."""
        if self.is_sqlite:
            try:
                if self._kept is None:
                    self._kept = self._readers.connect()
                return work(self._kept)
            except SQLAlchemyError:
                # a connection that failed once is not relied on again
                self._drop_kept()
                raise
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(workers, context.run, self._read, work)

    def _read(self, work: Callable[[Connection], _Result]) -> _Result:
        with self.reading() as connection:
            return work(connection)

    def check(self) -> None:
        """Return if the database takes writes, else raise `SQLAlchemyError`. Changes nothing."""
        with self.transaction() as session:
            session.execute(delete(LeaseRow).where(false()))

    def pools(self) -> dict[str, Connections]:
        """Return the state of each pool: on PostgreSQL one, ``shared`` by all but the locks."""
        pools = {"transactions": self.engine, "reads": self._readers} if self.is_sqlite else {"shared": self.engine}
        return {name: _connections(cast("QueuePool", engine.pool)) for name, engine in pools.items()}

    def _drop_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            with contextlib.suppress(SQLAlchemyError):
                kept.close()

    def close(self) -> None:
        """Close all connections."""
        self._drop_kept()
        self._readers.dispose()
        self.engine.dispose()


def _connections(pool: QueuePool) -> Connections:
    return Connections(pool.checkedout(), pool.size() + max(pool._max_overflow, 0))  # noqa: SLF001 - nothing else tells


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        # the driver's own implicit transactions would begin as readers and fail when they come to write
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={_BUSY_MS}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
