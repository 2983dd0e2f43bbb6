"""Leases, publishes and the audit trail, counted, timed and traced where they pass."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from cache_server.database.models import LeaseState
from cache_server.errors import Problem
from cache_server.services.audit import Audit
from cache_server.services.leasing import Leasing
from cache_server.services.publishing import Publishing
from client.wire import Failed, Granted, NotGranted, Ready, Wait

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from cache_server.access import Actor
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.database.models import LeaseRow
    from cache_server.lease_rules import LeaseRequest
    from cache_server.locking import KeyLocks
    from cache_server.metrics import Metrics
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.polling import Polling
    from cache_server.services.publishing import Published
    from cache_server.services.trust import Trust
    from cache_server.services.waiting import Waiters
    from cache_server.stores.base import Store
    from cache_server.tracing.base import Tracing
    from client.errors import Failure
    from client.wire import Entry, LeaseAnswer

_STATES: dict[type, str] = {Ready: "ready", Granted: "granted", Wait: "wait", Failed: "failed", NotGranted: "denied"}
_QUARANTINE = "entry.quarantine"


class MeasuredPolling:
    """`cache_server.services.polling.Polling` around another one."""

    def __init__(self, polling: Polling, metrics: Metrics, tracing: Tracing) -> None:
        self._polling = polling
        self._metrics = metrics
        self._tracing = tracing

    async def ask(
        self, address: Address, request: LeaseRequest, wait_seconds: float, gone: asyncio.Future[None]
    ) -> LeaseAnswer:
        """Return the answer, after waiting up to ``wait_seconds`` for the holder."""
        metrics = self._metrics
        begin = metrics.monotonic()
        with self._tracing.span("lease.wait", key=address.key):
            answer = await self._polling.ask(address, request, wait_seconds, gone)
        state = _STATES[type(answer)]
        metrics.leases.labels(state).inc()
        metrics.lease_seconds.labels(state).observe(metrics.monotonic() - begin)
        return answer


class MeasuredLeasing(Leasing):
    """`Leasing`, counted."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        database: Database,
        locks: KeyLocks,
        catalogue: Catalogue,
        waiters: Waiters,
        ttl_seconds: float,
        most_held: int | None = None,
    ) -> None:
        super().__init__(
            database=database,
            locks=locks,
            catalogue=catalogue,
            waiters=waiters,
            ttl_seconds=ttl_seconds,
            most_held=most_held,
        )
        self._metrics = metrics

    def _grant(
        self, session: Session, address: Address, row: LeaseRow | None, request: LeaseRequest, now: float
    ) -> Granted:
        if row is not None and row.state == LeaseState.HELD:
            _on_commit(session, self._metrics.takeovers.inc)
        return super()._grant(session, address, row, request, now)

    def renew(self, address: Address, token: str) -> Granted:
        """Heartbeat."""
        with self._lost("renew"):
            return super().renew(address, token)

    def release(self, address: Address, token: str, failure: Failure | None) -> None:
        """Give the lease back."""
        with self._lost("release"):
            super().release(address, token, failure)
        self._metrics.lease_ends.labels("released" if failure is None else failure.failure_class).inc()

    @contextlib.contextmanager
    def _lost(self, call: str) -> Iterator[None]:
        try:
            yield
        except Problem as problem:
            if problem.kind.name == "lease_lost":
                self._metrics.leases_lost.labels(call).inc()
            raise


class MeasuredPublishing(Publishing):
    """`Publishing`, counted."""

    def __init__(
        self,
        metrics: Metrics,
        tracing: Tracing,
        *,
        store: Store,
        database: Database,
        locks: KeyLocks,
        catalogue: Catalogue,
        waiters: Waiters,
        audit: Audit,
        trust: Trust,
    ) -> None:
        super().__init__(
            store=store,
            database=database,
            locks=locks,
            catalogue=catalogue,
            waiters=waiters,
            audit=audit,
            trust=trust,
        )
        self._metrics = metrics
        self._tracing = tracing

    def publish(self, address: Address, entry: Entry, *, by: Actor, action: str = "entry.publish") -> Published:
        """Let an entry stand."""
        metrics = self._metrics
        with self._tracing.span("publish", key=address.key):
            published = super().publish(address, entry, by=by, action=action)
        metrics.projects.know(address.project)
        metrics.publishes.labels("created" if published.created else "stood_before").inc()
        if published.created and not published.entry.promotions:
            # a promoted entry is a copy: its compile was counted where it was published
            metrics.published_seconds.labels(metrics.projects.label(address.project), str(address.kind)).inc(
                published.entry.compile_seconds
            )
        return published


class MeasuredAudit(Audit):
    """`Audit`, counted: a row whose transaction was rolled back counts for nothing."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        super().__init__(database)
        self._metrics = metrics

    def record(self, session: Session, *, action: str, **row: Any) -> None:
        """Add a row in the caller's transaction."""
        super().record(session, action=action, **row)
        metrics = self._metrics

        def count() -> None:
            metrics.changes.labels(action).inc()
            if action == _QUARANTINE:
                metrics.quarantines.labels(metrics.projects.label(str(row["project"])), str(row["kind"])).inc()

        _on_commit(session, count)


def _on_commit(session: Session, count: Callable[[], object]) -> None:
    event.listen(session, "after_commit", lambda _session: count(), once=True)
