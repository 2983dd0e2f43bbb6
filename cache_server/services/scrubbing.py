"""Read stored outputs again, slowly and for ever, so that damage is found before a job meets it.

Entries are taken in the order in which they were last found right. That time stands in the entry's row, so a scrub goes
on where it stopped after a restart or on another server. What looks damaged goes the way of every suspicion
(`cache_server.services.suspicion`), which looks again under the key's lock and sets the entry aside. An output that
cannot be read is no verdict: it is counted, and due again with the next run.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from cache_server.database import scrub
from cache_server.errors import Problem
from cache_server.services.verification import hashes_right
from cache_server.stores.base import StoreError
from client.errors import WireError
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.database.scrub import Due, Progress
    from cache_server.locking import Duty
    from cache_server.metrics import Metrics
    from cache_server.services.suspicion import Suspicion
    from cache_server.stores.base import Store

SAVE_SECONDS = 5.0
"""How often progress is written down: a crash repeats at most this much, and a new request is seen within it."""

LOOK_SECONDS = 10.0
"""How often is looked whether something became due: by its age, or because another server was asked for a run."""

_log = structlog.get_logger("cache_server.scrub")


class Scrubbing:
    """Scrub, on a thread of its own: see `start`. One run at a time among all servers."""

    def __init__(
        self,
        *,
        store: Store,
        database: Database,
        suspicion: Suspicion,
        duty: Duty,
        metrics: Metrics,
        bytes_per_second: int,
        every_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """``bytes_per_second`` 0: nothing becomes due by itself, and runs that are asked for go at full speed.

        ``sleep``: by default one that a stop ends at once.
        """
        self._database = database
        self._every = every_seconds
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        stop = threading.Event()
        self._means = _Means(
            store, database, suspicion, duty, metrics, bytes_per_second, monotonic, sleep or stop.wait, stop
        )

    def start(self) -> None:
        """Run whenever something is due, until `stop`."""
        self._thread = threading.Thread(target=self._forever, name="neff-cache-scrub", daemon=True)
        self._thread.start()

    def _forever(self) -> None:
        while True:
            self._wake.clear()
            if self._means.stop.is_set():
                return
            try:
                self.run()
            except Exception as error:  # noqa: BLE001 - the next run may go well; the server serves meanwhile
                _log.error("scrub failed", exc_info=error)
            self._wake.wait(LOOK_SECONDS)

    def stop(self) -> None:
        """End the run that goes on here, and wait until it has; whoever runs next resumes it. May be called twice."""
        self._means.stop.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def request(self) -> Progress:
        """Make every entry that stands now due; the thread of the server whose duty it is sees to them."""
        with self._database.transaction() as session:
            progress = scrub.request(session, self._database.now(session))
        self._wake.set()
        return progress

    def progress(self) -> Progress | None:
        """Return how far the run is that goes on, or how the last one ended; None before the first."""
        with self._database.reading() as connection:
            return scrub.progress(connection)

    def run(self) -> Progress | None:
        """Scrub what is due, if that is this server's duty; return how far the run is, None if there was none."""
        means = self._means
        if not means.duty.is_ours():
            return None
        with self._database.transaction() as session:
            now = self._database.now(session)
            progress = scrub.begin(session, now=now, due_before=now - self._every if means.rate else None)
        if progress is None:
            return None
        run = _Run(means, progress, now)
        try:
            run.go()
        except _Stopped:
            run.save(ended=False)
        _log.info("scrub ended" if run.progress.ended else "scrub stopped", **run.progress.counts())
        return run.progress


@dataclass(frozen=True)
class _Means:
    """What a run works with."""

    store: Store
    database: Database
    suspicion: Suspicion
    duty: Duty
    metrics: Metrics
    rate: int
    monotonic: Callable[[], float]
    sleep: Callable[[float], object]
    stop: threading.Event


class _Stopped(Exception):  # noqa: N818 - no error: the way out of a read in the middle
    """The run ends here and goes on later, perhaps elsewhere."""


class _Run:
    """One run, or the part of it that this server does."""

    def __init__(self, means: _Means, progress: Progress, now: float) -> None:
        self.progress = progress
        self._means = means
        self._right: list[Address] = []
        self._as_of = now
        self._saved = self._ahead = means.monotonic()

    def go(self) -> None:
        """Verify entries until none is due."""
        after: Due | None = None
        while self.progress.ended is None:
            with self._means.database.reading() as connection:
                now = self._means.database.now(connection)
                page = scrub.due(connection, before=self.progress.horizon, now=now, after=after)
            for after in page:
                self._take(after)
            if not page:
                self.save(ended=True)

    def _take(self, due: Due) -> None:
        try:
            result = self._verify(due.address, Entry.from_json(json.loads(due.document)))
        except (StoreError, Problem, WireError) as error:
            if isinstance(error, Problem) and error.kind.name == "invalid":
                # deleted while we read, and another build published since
                result = "absent"
            else:
                self.progress.unreadable += 1
                result = "unreadable"
                _log.warning("not verified", address=str(due.address), error=str(error))
        if result == "right":
            self._right.append(due.address)
        self.progress.entries += 1
        self._means.metrics.scrubbed.labels(result).inc()

    def _verify(self, address: Address, entry: Entry) -> str:
        for output in entry.outputs:
            if hashes_right(self._means.store, address, output, pace=self._pace):
                continue
            # it may also have been deleted while we read: the verdict is found under the key's lock
            verdict = self._means.suspicion.suspect(address, output.sha256)
            if verdict == "quarantined":
                self.progress.quarantined += 1
                _log.warning("a stored output was damaged", address=str(address), output=output.name)
            return verdict
        return "right"

    def _pace(self, size: int) -> None:
        """Count bytes that were read, and wait until their time is over."""
        means = self._means
        self.progress.bytes_read += size
        means.metrics.scrubbed_bytes.inc(size)
        now = means.monotonic()
        if now - self._saved >= SAVE_SECONDS:
            self.save(ended=False)
            if not means.duty.is_ours():
                raise _Stopped
        if means.rate:
            # a store that is slower than the rate leaves no claim to a burst
            self._ahead = max(self._ahead, now) + size / means.rate
            means.sleep(self._ahead - now)
        if means.stop.is_set():
            raise _Stopped

    def save(self, *, ended: bool) -> None:
        """Write down what was found right, and how far we are; learn what became due meanwhile."""
        means = self._means
        with means.database.transaction() as session:
            now = means.database.now(session)
            # as of the save before: never later than the entry was read
            scrub.found_right(session, self._right, self._as_of)
            self.progress = scrub.save(session, self.progress, ended=now if ended else None)
        self._right.clear()
        self._as_of = now
        self._saved = means.monotonic()
