"""A database that counts and times what passes through it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from cache_server.database.engine import Database
from cache_server.tracing.base import NO_TRACING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from sqlalchemy import URL, Connection
    from sqlalchemy.orm import Session

    from cache_server.database.engine import Clock
    from cache_server.metrics import Metrics
    from cache_server.tracing.base import Tracing

_Result = TypeVar("_Result")


class MeasuredDatabase(Database):
    """`Database`, measured. A single read from the event loop is counted and gets no span: it would cost more."""

    def __init__(
        self,
        url: URL,
        metrics: Metrics,
        tracing: Tracing = NO_TRACING,
        *,
        clock: Clock | None = None,
        connections: int = 16,
    ) -> None:
        super().__init__(url, clock=clock, connections=connections)
        self._metrics = metrics
        self._tracing = tracing
        # looked up once: on the way of every hit
        self._seconds = {call: metrics.database_seconds.labels(call) for call in ("transaction", "read")}
        self._well = {call: metrics.database_calls.labels(call, "ok") for call in ("transaction", "read")}

    @contextlib.contextmanager
    def _measured(self, call: str) -> Iterator[None]:
        begin = self._metrics.monotonic()
        try:
            yield
        except SQLAlchemyError:
            self._metrics.database_calls.labels(call, "error").inc()
            raise
        except BaseException:
            self._metrics.database_calls.labels(call, "refused").inc()
            raise
        else:
            self._well[call].inc()
        finally:
            self._seconds[call].observe(self._metrics.monotonic() - begin)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run a transaction."""
        with self._tracing.span("database.transaction"), self._measured("transaction"), super().transaction() as found:
            yield found

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection for reads."""
        with self._measured("read"), super().reading() as found:
            yield found

    async def read(self, work: Callable[[Connection], _Result], workers: Executor) -> _Result:
        """Run one quick read."""
        if not self.is_sqlite:
            # it comes to `reading`
            return await super().read(work, workers)
        with self._measured("read"):
            return await super().read(work, workers)
