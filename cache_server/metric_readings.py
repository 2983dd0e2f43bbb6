"""What a scrape reads: figures that all servers share, and those of this process that nobody counts as they change."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from alembic.runtime.migration import MigrationContext
from sqlalchemy.exc import SQLAlchemyError

from cache_server.database import entries, leases, scrub
from cache_server.metrics import REPORTED, TIERS
from cache_server.services.collection import JOB
from cache_server.services.jobs import Jobs
from cache_server.services.reports import Reports
from cache_server.stores.base import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from cache_server.database.entries import Totals
    from cache_server.metrics import Metrics
    from cache_server.service import Service
    from cache_server.services.reports import Reported


def render(service: Service) -> bytes:
    """Return all metrics in Prometheus' text format. Blocks.

    A database or a disk that does not answer takes away its own figures and nothing else: that is when operators look.
    """
    metrics = service.metrics
    metrics.waiting.set(service.waiters.count)
    metrics.promised.set(service.space.promised)
    for name, pool in service.database.pools().items():
        metrics.connections.labels(name).set(pool.used)
        metrics.most_connections.labels(name).set(pool.limit)
    _read_store(service)
    _read_database(service)
    return metrics.render()


def _read_store(service: Service) -> None:
    metrics = service.metrics
    try:
        free = service.store.free_bytes()
        metrics.free.set(float("inf") if free is None else free)
    except StoreError:
        metrics.free.set(float("nan"))
        metrics.readable.labels("store").set(0)
    else:
        metrics.readable.labels("store").set(1)


def _read_database(service: Service) -> None:
    metrics = service.metrics
    try:
        with service.database.reading() as connection:
            _show_totals(metrics, entries.totals(connection))
            _show_reported(metrics, Reports.totals(connection))
            _show_state(metrics, connection, service.database.now(connection))
    except SQLAlchemyError:
        for shown in (
            metrics.schema,
            metrics.entries,
            metrics.stored,
            metrics.stored_seconds,
            metrics.leases_held,
            metrics.collection_ended,
            metrics.scrub_ended,
            metrics.scrub_stopped,
            metrics.scrub_suspected,
            metrics.reported_hits,
            *metrics.reported.values(),
        ):
            shown.show({})
        metrics.readable.labels("database").set(0)
    else:
        metrics.readable.labels("database").set(1)


def _show_totals(metrics: Metrics, totals: list[Totals]) -> None:
    count: Counter[tuple[str, ...]] = Counter()
    stored: Counter[tuple[str, ...]] = Counter()
    seconds: dict[tuple[str, ...], float] = {}
    for row in totals:
        metrics.projects.know(row.project)
        labels = (metrics.projects.label(row.project), row.kind)
        count[labels] += row.entries
        stored[labels] += row.stored_bytes
        seconds[labels] = seconds.get(labels, 0.0) + row.compile_seconds
    metrics.entries.show(count)
    metrics.stored.show(stored)
    metrics.stored_seconds.show(seconds)


def _show_reported(metrics: Metrics, reported: list[Reported]) -> None:
    """Show what clients reported, of projects with a label of their own.

    The others are left out, not added up: a project that got its label would take its share out of that sum, and a
    counter that falls looks like one that began anew.
    """
    for row in reported:
        metrics.projects.know_reported(row.project)
    known = {(row.project, row.kind, row.counter): row.total for row in reported if metrics.projects.knows(row.project)}
    for counter in REPORTED:
        metrics.reported[counter].show({place[:2]: total for place, total in known.items() if place[2] == counter})
    tiers = {f"{tier}_hits": tier for tier in TIERS}
    metrics.reported_hits.show(
        {(project, kind, tiers[name]): total for (project, kind, name), total in known.items() if name in tiers}
    )


def _show_state(metrics: Metrics, connection: Connection, now: float) -> None:
    metrics.leases_held.show_one(leases.count_held(connection, now))
    metrics.collection_ended.show_one(Jobs.finished(connection, JOB))
    progress = scrub.progress(connection)
    metrics.scrub_ended.show_one(None if progress is None else progress.ended)
    metrics.scrub_stopped.show_one(progress is not None and progress.stopped is not None)
    metrics.scrub_suspected.show_one(scrub.count_suspected(connection))
    revision = MigrationContext.configure(connection).get_current_revision()
    metrics.schema.show({(str(revision),): 1.0})
