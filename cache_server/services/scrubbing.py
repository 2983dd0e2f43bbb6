"""Read stored outputs again, slowly and for ever, so that damage is found before a job meets it.

Entries are taken in the order in which they were last found right. That time stands in the entry's row, so a scrub goes
on where it stopped after a restart or on another server. What looks damaged is written down, and looked at again ten
minutes later; if the fault is the same, it goes the way of every suspicion (`cache_server.services.suspicion`), which
looks again under the key's lock and sets the entry aside. An output that cannot be read is no verdict: it is counted,
and due again with the next run. Where several entries in a row cannot be found right, it is the store that is ill: the
scrub stops, says so, and goes on after a rest, with the entries behind them.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from cache_server.database import entries, scrub
from cache_server.database.models import EntryState
from cache_server.database.scrub import Suspected
from cache_server.errors import Problem
from cache_server.services.verification import fault
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
    from client.wire import Output

SAVE_SECONDS = 5.0
"""How often progress is written down: a crash repeats at most this much, and a new request is seen within it."""

LOOK_SECONDS = 10.0
"""How often is looked whether something became due: by its age, or because another server was asked for a run."""

MOST_IN_A_ROW = 5
"""Entries in a row that are not found right, from which on the store is suspected and not they."""

_NOT_RIGHT = frozenset({"suspected", "quarantined", "unreadable"})

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
        self._after: Due | None = None
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
        self._after = None
        self._wake.set()
        return progress

    def note(self, address: Address, sha256: str) -> None:
        """Have an output looked at before long that somebody found wrong and did not wait for."""
        with self._database.transaction() as session:
            row = entries.indexed(session, address)
            if row is not None and any(output.sha256 == sha256 for output in row.entry.outputs):
                scrub.suspect(session, Suspected(address, sha256, "", self._database.now(session)))

    def progress(self) -> Progress | None:
        """Return how far the run is that goes on, or how the last one ended; None before the first."""
        with self._database.reading() as connection:
            return scrub.progress(connection)

    def suspected(self) -> int:
        """Return how many outputs were found wrong once, and wait for a second look."""
        with self._database.reading() as connection:
            return scrub.count_suspected(connection)

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
        run = _Run(means, progress, now, self._after)
        try:
            run.go()
        except _Stopped as stop:
            run.save(ended=False, reason=stop.reason)
        # what could not be verified is passed over while this run goes on
        self._after = None if run.progress.ended else run.after
        if run.progress.reason is not None:
            _log.error("scrub rests", reason=run.progress.reason, **run.progress.counts())
        else:
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
    """The run ends here and goes on later, perhaps elsewhere; with a ``reason``, after a rest."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class _Run:
    """One run, or the part of it that this server does."""

    def __init__(self, means: _Means, progress: Progress, now: float, after: Due | None) -> None:
        self.progress = progress
        self.after = after
        self._means = means
        self._in_a_row = 0
        self._right: list[Address] = []
        self._as_of = now
        self._saved = self._ahead = means.monotonic()

    def go(self) -> None:
        """Look at suspicions again, then verify entries until none is due."""
        with self._means.database.reading() as connection:
            again = scrub.due_again(connection, self._means.database.now(connection))
        for item in again:
            self._count(self._judged(item), item.address)
        while self.progress.ended is None:
            with self._means.database.reading() as connection:
                now = self._means.database.now(connection)
                page = scrub.due(connection, before=self.progress.horizon, now=now, after=self.after)
            for due in page:
                # passed over if the run stops in its middle for the store's sake, read again if for another reason
                result = self._taken(due)
                self.after = due
                self.progress.entries += 1
                self._count(result, due.address)
            if not page:
                self.save(ended=True)

    def _count(self, result: str, address: Address) -> None:
        self._means.metrics.scrubbed.labels(result).inc()
        if result == "quarantined":
            self.progress.quarantined += 1
            _log.warning("a stored output was damaged", address=str(address))
        elif result == "unreadable":
            self.progress.unreadable += 1
        self._in_a_row = self._in_a_row + 1 if result in _NOT_RIGHT else 0
        if self._in_a_row == MOST_IN_A_ROW:
            raise _Stopped(
                f"{self._in_a_row} entries in a row could not be verified, the last one {address}: is the store well? "
                f"The scrub goes on {scrub.REST_SECONDS:.0f} s later"
            )

    def _taken(self, due: Due) -> str:
        """Verify an entry for the first time."""
        try:
            entry = Entry.from_json(json.loads(due.document))
            for output in entry.outputs:
                found = fault(self._means.store, due.address, output, pace=self._pace)
                if found is not None:
                    return self._suspected(due.address, entry, output, found)
        except (StoreError, WireError) as error:
            return self._unreadable(due.address, error)
        self._right.append(due.address)
        return "right"

    def _suspected(self, address: Address, entry: Entry, output: Output, found: str) -> str:
        """Write a suspicion down, unless the entry went while it was read."""
        means = self._means
        with means.database.transaction() as session:
            row = entries.indexed(session, address)
            if row is None or row.state is not EntryState.READY or row.entry != entry:
                return "absent"
            scrub.suspect(session, Suspected(address, output.sha256, found, means.database.now(session)))
        _log.warning("looks damaged, and is looked at again", address=str(address), output=output.name, found=found)
        return "suspected"

    def _judged(self, item: Suspected) -> str:
        """Look at a suspicion again: it must be the same fault twice, and under the key's lock once more."""
        means = self._means
        found: str | None = item.found
        try:
            with means.database.reading() as connection:
                row = entries.indexed(connection, item.address)
            outputs = () if row is None or row.state is not EntryState.READY else row.entry.outputs
            output = next((output for output in outputs if output.sha256 == item.sha256), None)
            if output is None:
                result = "absent"
            else:
                found = fault(means.store, item.address, output, fresh=True, pace=self._pace)
                same = found == item.found
                result = means.suspicion.suspect(item.address, item.sha256) if same else "sound"
        except (StoreError, Problem, WireError) as error:
            result = self._unreadable(item.address, error)
        with means.database.transaction() as session:
            if result == "unreadable" or (found is not None and found != item.found):
                later = item._replace(found=found or item.found, time=means.database.now(session))
                scrub.suspect(session, later)
                return "unreadable" if result == "unreadable" else "suspected"
            scrub.clear(session, item)
        return result

    @staticmethod
    def _unreadable(address: Address, error: Exception) -> str:
        _log.warning("not verified", address=str(address), error=str(error))
        return "unreadable"

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

    def save(self, *, ended: bool, reason: str | None = None) -> None:
        """Write down what was found right, and how far we are; learn what became due meanwhile."""
        means = self._means
        with means.database.transaction() as session:
            now = means.database.now(session)
            # as of the save before: never later than the entry was read
            scrub.found_right(session, self._right, self._as_of)
            if reason is not None:
                self.progress.stopped, self.progress.reason = now, reason
            self.progress = scrub.save(session, self.progress, ended=now if ended else None)
        self._right.clear()
        self._as_of = now
        self._saved = means.monotonic()
