"""Prometheus metrics: what this process counts, and what a scrape reads for the whole cluster.

Labels are bounded: their values come from closed sets, or are names of projects that hold entries, and of those at most
so many as the settings say. Anybody can ask for any project, so the others share one label.
"""

from __future__ import annotations

import contextlib
import platform
import time
from typing import TYPE_CHECKING

from prometheus_client import GCCollector, ProcessCollector, generate_latest

from cache_server.metric_kinds import Catalogue
from cache_server.metric_projects import MOST_PROJECTS, ProjectLabels
from client import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cache_server.metric_kinds import Shown

_CALLS = (0.00025, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
"""A hit takes a millisecond, a waiting poll up to 25 s."""
_JOBS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)

REPORTED: Mapping[str, tuple[str, str]] = {
    "lookups": ("lookups_total", "Programs asked for"),
    "misses": ("misses_total", "Look-ups that no tier could answer"),
    "compiles": ("compiles_total", "Runs of a compiler, the failed ones included"),
    "waits": ("waits_total", "Look-ups that waited for another process's compile"),
    "errors": ("errors_total", "Faults of the cache that no job ended from"),
    "compile_seconds": ("compile_seconds_total", "Seconds in compilers"),
    "saved_seconds": (
        "saved_seconds_total",
        "Compile seconds spared by entries found on a node's disk or in the shared cache",
    ),
    "bytes_down": ("received_bytes_total", "Plain bytes of programs fetched"),
    "bytes_up": ("sent_bytes_total", "Plain bytes of outputs published"),
}
"""Counters of a job's report: the metric's name behind ``client_``, and its meaning."""
TIERS = ("memory", "disk", "remote")


class Metrics(Catalogue):
    """Every metric of a server."""

    def __init__(
        self, monotonic: Callable[[], float] = time.perf_counter, *, most_projects: int = MOST_PROJECTS
    ) -> None:
        super().__init__()
        self.monotonic = monotonic
        self.projects = ProjectLabels(most_projects)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._count_requests()
        self._count_leases()
        self._count_upkeep()
        self._count_below()
        self._read_from_the_database()
        self.build.labels(__version__, platform.python_version()).set(1)

    def _count_requests(self) -> None:
        self.requests = self.counter("requests_total", "Requests that ended.", "route", "status", source="gate")
        self.request_seconds = self.histogram(
            "request_seconds",
            "Seconds from a request's head to the end of its answer, waits included.",
            "route",
            source="gate",
            buckets=_CALLS,
        )
        self.running = self.gauge("requests_running", "Requests that run now, those that wait included.", source="gate")
        self.errors = self.counter(
            "errors_total", "Error answers by the name that `errors` gives.", "name", source="gate"
        )
        self.lookups = self.counter(
            "lookups_total", "Artifact requests: hit or miss.", "project", "kind", "result", source="routes.artifacts"
        )
        self.lookup_keys = self.counter(
            "lookup_keys_total",
            "Keys of requests that look up many at once: found or missing.",
            "result",
            source="routes.projects",
        )
        self.sent = self.counter("sent_bytes_total", "Bytes of outputs sent, redirects not included.", source="gate")
        self.received = self.counter("received_bytes_total", "Bytes of outputs stored.", source="routes.artifacts")
        self.uploads_running = self.gauge(
            "uploads_running", "Uploads of outputs that run now.", source="routes.artifacts"
        )
        self.uploads = self.counter(
            "uploads_total",
            "Uploads of outputs: created, stood_before, or failed (refused or broken off).",
            "result",
            source="routes.artifacts",
        )
        self.promised = self.gauge(
            "promised_bytes", "Room promised to uploads that run and not written yet.", source="services.reservation"
        )
        self.publishes = self.counter(
            "publishes_total",
            "Publishes and promotions: created, or stood_before.",
            "result",
            source="services.measured",
        )
        self.published_seconds = self.counter(
            "published_compile_seconds_total",
            "Compile seconds of the entries published here.",
            "project",
            "kind",
            source="services.measured",
        )

    def _count_leases(self) -> None:
        self.leases = self.counter(
            "lease_answers_total",
            "Answers to requests for a lease: ready, granted, wait, failed or denied.",
            "state",
            source="services.measured",
        )
        self.lease_seconds = self.histogram(
            "lease_wait_seconds",
            "Seconds that requests for a lease took, by their answer: of `ready` and `failed`, the wait for a holder.",
            "state",
            source="services.measured",
            buckets=(0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0),
        )
        self.lease_ends = self.counter(
            "lease_ends_total",
            "Leases given back: released, or the class of the failure (diagnosis, resource, transient). "
            "Those that a publish ends are not among them.",
            "how",
            source="services.measured",
        )
        self.leases_lost = self.counter(
            "leases_lost_total",
            "Heartbeats and releases of leases that had ended: taken over after they ran out, or published by another.",
            "call",
            source="services.measured",
        )
        self.takeovers = self.counter(
            "lease_takeovers_total",
            "Grants of a key whose holder was heard of no more: it died, or lost its network.",
            source="services.measured",
        )
        self.waiting = self.gauge("waiting", "Requests that wait for a lease now.", source="services.waiting")

    def _count_upkeep(self) -> None:
        self.changes = self.counter(
            "changes_total", "Rows of the audit trail that were committed.", "action", source="services.measured"
        )
        self.quarantines = self.counter(
            "quarantines_total",
            "Entries set aside for damage, whoever found it.",
            "project",
            "kind",
            source="services.measured",
        )
        self.suspects = self.counter(
            "suspects_total",
            "Outputs that readers called damaged, by verdict: sound, quarantined or absent.",
            "verdict",
            source="routes.entries",
        )
        self.scrubbed = self.counter(
            "scrubbed_total",
            "Entries that the scrub read again: right, suspected, quarantined, sound, absent or unreadable.",
            "result",
            source="services.scrubbing",
        )
        self.scrubbed_bytes = self.counter(
            "scrubbed_bytes_total", "Bytes that the scrub read again.", source="services.scrubbing"
        )
        self.collections = self.counter(
            "collections_total",
            "Collections: done, paused, busy, futile, interrupted or error.",
            "state",
            source="services.collection",
        )
        self.collection_seconds = self.histogram(
            "collection_seconds", "Seconds that collections took.", source="services.collection", buckets=_JOBS
        )
        self.collected = self.counter(
            "collected_entries_total", "Entries collected.", "reason", source="services.collection"
        )
        self.collected_bytes = self.counter(
            "collected_bytes_total", "Bytes collected.", "reason", source="services.collection"
        )
        self.quota_refusals = self.counter(
            "quota_refusals_total",
            "Uploads and publishes refused for a project's quota.",
            "project",
            source="services.quotas",
        )

    def _count_below(self) -> None:
        self.store_seconds = self.histogram(
            "store_seconds", "Seconds of calls of the store.", "call", source="stores.measured", buckets=_CALLS
        )
        self.store_calls = self.counter(
            "store_calls_total",
            "Calls of the store: ok (an absent object too), full or error.",
            "call",
            "outcome",
            source="stores.measured",
        )
        self.free = self.gauge(
            "store_free_bytes", "Room left on the store's disk; +Inf for a bucket.", source="metric_readings"
        )
        self.database_seconds = self.histogram(
            "database_seconds",
            "Seconds of a transaction or of reads on one connection, waits for it included.",
            "call",
            source="database.measured",
            buckets=_CALLS,
        )
        self.database_calls = self.counter(
            "database_calls_total",
            "Transactions and reads: ok, refused (rolled back because a rule said no) or error.",
            "call",
            "outcome",
            source="database.measured",
        )
        self.connections = self.gauge(
            "database_connections", "Connections in use, by pool.", "pool", source="metric_readings"
        )
        self.most_connections = self.gauge(
            "database_connections_limit", "Connections a pool may open.", "pool", source="metric_readings"
        )
        self.readable = self.gauge(
            "readable",
            "1 if the database, or the store's disk, gave this scrape its figures, else 0 and they are left out.",
            "source",
            source="metric_readings",
        )
        self.build = self.gauge(
            "build_info", "1; version of the server and of Python.", "version", "python", source="metrics"
        )

    def _read_from_the_database(self) -> None:
        source = "metric_readings"

        def shown(name: str, meaning: str, *labels: str) -> Shown:
            return self.shown(name, "gauge", meaning, *labels, source=source)

        self.schema = shown("schema_info", "1; revision of the database's schema.", "revision")
        self.entries = shown("entries", "Entries that stand.", "project", "kind")
        self.stored = shown("stored_bytes", "Bytes of entries, as stored.", "project", "kind")
        self.stored_seconds = shown("stored_compile_seconds", "Compile seconds of entries.", "project", "kind")
        self.leases_held = shown("leases_held", "Leases that run now.")
        self.collection_ended = shown(
            "collection_ended_timestamp_seconds", "When a collection last ended, in seconds since the epoch."
        )
        self.scrub_ended = shown(
            "scrub_ended_timestamp_seconds", "When a scrub last ended, in seconds since the epoch."
        )
        self.scrub_stopped = shown(
            "scrub_stopped", "1 while the scrub rests because too much in a row could not be verified, else 0."
        )
        self.scrub_suspected = shown(
            "scrub_suspected", "Outputs that the scrub found wrong once and will look at again."
        )
        self.reported = {
            counter: self.shown(
                f"client_{name}", "counter", f"{meaning}, as jobs report at exit.", "project", "kind", source=source
            )
            for counter, (name, meaning) in REPORTED.items()
        }
        self.reported_hits = self.shown(
            "client_hits_total",
            "counter",
            "Look-ups that a tier answered (memory, the node's disk, the shared cache), as jobs report at exit.",
            "project",
            "kind",
            "tier",
            source=source,
        )

    def count_lookup(self, project: str, kind: str, *, hit: bool) -> None:
        """Count an artifact request."""
        self.lookups.labels(self.projects.label(project), kind, "hit" if hit else "miss").inc()

    def count_lookups(self, *, asked: int, found: int) -> None:
        """Count the keys of a request for many."""
        self.lookup_keys.labels("found").inc(found)
        self.lookup_keys.labels("missing").inc(asked - found)

    @contextlib.contextmanager
    def upload(self) -> Iterator[Callable[[int, bool], None]]:
        """Count an upload, as one that runs and then by how it ended: whoever stores it calls what this gives."""
        result = "failed"

        def stored(stored_bytes: int, created: bool) -> None:
            nonlocal result
            result = "created" if created else "stood_before"
            self.received.inc(stored_bytes)

        try:
            with self.uploads_running.track_inprogress():
                yield stored
        finally:
            self.uploads.labels(result).inc()

    def count_collected(self, reason: str, stored_bytes: int) -> None:
        """Count an entry that was collected."""
        self.collected.labels(reason).inc()
        self.collected_bytes.labels(reason).inc(stored_bytes)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
