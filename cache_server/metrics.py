"""Prometheus metrics. One registry per application, so that two of them in a process do not mix."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Every metric of the server. Label values come from closed sets or from projects that hold entries."""

    def __init__(self, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self.registry = CollectorRegistry()
        self.monotonic = monotonic
        self._projects: set[str] = set()
        self.requests = Counter(
            "neff_cache_requests", "Requests by route and status.", ("route", "status"), registry=self.registry
        )
        self.request_seconds = Histogram(
            "neff_cache_request_seconds",
            "Seconds from the request's head to the end of its answer, waits included.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.errors = Counter("neff_cache_errors", "Error answers by name.", ("name",), registry=self.registry)
        self.lookups = Counter(
            "neff_cache_lookups", "Artifact requests.", ("project", "kind", "result"), registry=self.registry
        )
        self.sent = Counter("neff_cache_sent_bytes", "Bytes of outputs sent.", registry=self.registry)
        self.received = Counter("neff_cache_received_bytes", "Bytes of outputs stored.", registry=self.registry)
        self.publishes = Counter(
            "neff_cache_publishes",
            "Publishes by result: created, or stood before.",
            ("result",),
            registry=self.registry,
        )
        self.leases = Counter(
            "neff_cache_lease_answers", "Answers to lease requests by state.", ("state",), registry=self.registry
        )
        self.waiting = Gauge("neff_cache_waiting", "Lease requests that wait now.", registry=self.registry)
        self.leases_held = Gauge("neff_cache_leases_held", "Leases that run now.", registry=self.registry)
        self.suspects = Counter(
            "neff_cache_suspects", "Outputs that readers found wrong, by verdict.", ("verdict",), registry=self.registry
        )
        self.scrubbed = Counter(
            "neff_cache_scrubbed", "Entries that the scrub read again, by result.", ("result",), registry=self.registry
        )
        self.scrubbed_bytes = Counter(
            "neff_cache_scrubbed_bytes", "Bytes that the scrub read again.", registry=self.registry
        )
        self.free = Gauge(
            "neff_cache_store_free_bytes",
            "Room left on the store's disk; +Inf for a bucket.",
            registry=self.registry,
        )
        self.promised = Gauge("neff_cache_promised_bytes", "Room promised to uploads that run.", registry=self.registry)
        self.collected = Counter(
            "neff_cache_collected_entries", "Entries collected, by reason.", ("reason",), registry=self.registry
        )
        self.collected_bytes = Counter(
            "neff_cache_collected_bytes", "Bytes collected, by reason.", ("reason",), registry=self.registry
        )
        self.quota_refusals = Counter(
            "neff_cache_quota_refusals",
            "Uploads and publishes refused for a project's quota.",
            ("project",),
            registry=self.registry,
        )
        self.entries = Gauge("neff_cache_entries", "Entries.", ("project", "kind"), registry=self.registry)
        self.stored = Gauge("neff_cache_stored_bytes", "Bytes of entries.", ("project", "kind"), registry=self.registry)
        self.reported = Gauge(
            "neff_cache_reported",
            "Totals that clients reported at exit.",
            ("project", "kind", "counter"),
            registry=self.registry,
        )
        self.store_seconds = Histogram(
            "neff_cache_store_seconds", "Store calls.", ("call",), buckets=_SECONDS, registry=self.registry
        )
        self.store_errors = Counter(
            "neff_cache_store_errors", "Store calls that failed.", ("call",), registry=self.registry
        )

    def know_project(self, project: str) -> None:
        """Give a project that holds entries a label of its own."""
        self._projects.add(project)

    def count_lookup(self, project: str, kind: str, *, hit: bool) -> None:
        """Count an artifact request. Anybody can ask for any project: those without entries share one label."""
        label = project if project in self._projects else "(other)"
        self.lookups.labels(label, kind, "hit" if hit else "miss").inc()

    def count_collected(self, reason: str, stored_bytes: int) -> None:
        """Count an entry that was collected."""
        self.collected.labels(reason).inc()
        self.collected_bytes.labels(reason).inc(stored_bytes)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
