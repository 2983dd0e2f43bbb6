"""The shared cache as a job may use it: requests that can fail, stall or lie, and never hurt.

Every request goes through a breaker of its direction. A `TransportError` becomes `UNAVAILABLE` and one warning per
cause, unless ``NEURON_CACHE_ON_ERROR=fail`` asks for the exception. The time lost to requests that failed is added up:
beyond `LOST_LIMIT` seconds both directions rest until a request in the background was answered, and no request may
stand still for longer than what is left of `BUDGET`. So a server that is gone, deaf or wrong costs a job 12 s at most.
What a job has lost is forgiven by what it saves: a hit takes its compile seconds off the account.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from client.bounded import bounded, watched
from client.breaker import Breaker
from client.errors import Denied, LeaseLost, Refused, TransportError, Unreachable
from client.transports.base import Damaged, Reporting, TooLarge, TooSlow, Unwanted
from client.transports.patience import Patience, patient
from client.warnings import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client.errors import Failure
    from client.names import Kind
    from client.node.outage import Outage
    from client.renewer import Renewer
    from client.transports.base import Fetched, Published, Transport, Verdict, Withdrawn
    from client.warnings import Notices
    from client.wire import Entry, Granted, Holder, LeaseAnswer

T = TypeVar("T")
Direction: TypeAlias = Literal["read", "write"]

BUDGET = 10.0
"""Seconds that a job may lose to requests before it ends; 2 s more are for what it does at its exit."""
TRIAL = 1.0
"""Seconds that a server may cost again which has used up its budget and then answered in the background."""
CONNECT = 2.0
"""Seconds that a connection may take: `client.transports.limits.Limits.connect`."""
LOST_LIMIT = 5.5
"""Seconds: one request that runs into its deadlines may be followed by another, two may not."""
PUBLISH_LIMIT = 30.0
"""Seconds that a job waits for its own upload."""
REPORT_LIMIT = 1.0
"""Seconds that a connection, and then the answer, may take to a job's report at its exit."""
_TOO_MANY_REQUESTS = 429
_TOO_MANY_LEASES = "too_many_leases"
"""About the right to compile alone: the server goes on serving us."""
_SERVER_ERROR = 500


@dataclass(slots=True)
class Waited:
    """Seconds that a job has waited on a server's word, over all programs, with nothing to show for them.

    ``in_vain``: for a holder who never ended. ``idle``: for nobody. ``after_failures``: because a compile had failed.
    """

    in_vain: float = 0.0
    idle: float = 0.0
    after_failures: float = 0.0


class Availability(Enum):
    """What stands in place of an answer."""

    UNAVAILABLE = "unavailable"


Unavailable: TypeAlias = Literal[Availability.UNAVAILABLE]
UNAVAILABLE: Final = Availability.UNAVAILABLE


class Remote:
    """One transport behind its breakers. Safe to use from several threads; not across a fork.

    ``outage`` is what the processes of this node tell each other; ``renewer`` keeps leases past a busy interpreter.
    ``met`` is called with the kind for each fault.
    `answered` says whether any request of this process has had an answer: only then is it worth while to wait for one.
    """

    def __init__(
        self,
        transport: Transport,
        notices: Notices,
        *,
        met: Callable[[Kind], None],
        strict: bool = False,
        outage: Outage | None = None,
        renewer: Renewer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transport = transport
        self.renewer = renewer
        self._outage = outage
        self.answered = False
        self.waited = Waited()
        self._notices = notices
        self._met = met
        self._strict = strict
        self._clock = clock
        self._breakers: dict[Direction, Breaker] = {"read": Breaker(clock), "write": Breaker(clock)}
        self._lock = threading.Lock()
        self._lost = 0.0

    def fetch(self, kind: Kind, key: str, *, can_compile: bool = False) -> Fetched | Unavailable | None:
        """Return the program, None if there is none; raises `Damaged`, and `TooSlow` if the caller can compile it."""
        found = self._ask("read", kind, key, lambda: self.transport.fetch(kind, key), can_compile=can_compile)
        if found is not UNAVAILABLE and found is not None:
            with self._lock:
                self._lost = max(self._lost - found.entry.compile_seconds, 0.0)
        return found

    def suspect(self, kind: Kind, key: str, sha256: str) -> Verdict | Unavailable:
        """Have a damaged output verified where it is stored."""
        return self._ask("read", kind, key, lambda: self.transport.suspect(kind, key, sha256))

    def acquire(  # the arguments are those of the wire
        self,
        kind: Kind,
        key: str,
        holder: Holder,
        *,
        wait_seconds: float,
        seen_generation: int | None,
        retry_failed: bool,
        may_publish: bool,
        living_holder: bool = False,
    ) -> LeaseAnswer | Unavailable:
        """Ask for the right to compile; waits only if this process has had an answer before.

        The wait costs the job nothing only if it is for a ``living_holder``.
        """
        wait_seconds = wait_seconds if self.answered else 0.0
        return self._ask(
            "write",
            kind,
            key,
            lambda: self.transport.acquire(
                kind,
                key,
                holder,
                wait_seconds=wait_seconds,
                retry_failed=retry_failed,
                seen_generation=seen_generation,
                may_publish=may_publish,
            ),
            patience=wait_seconds if living_holder else 0.0,
        )

    def publish(
        self, entry: Entry, outputs: Mapping[str, bytes], lease: Granted | None, *, background: bool = False
    ) -> Published | Unavailable:
        """Store an entry; after `PUBLISH_LIMIT` the job goes on, and the upload ends in the background if it can.

        In the ``background`` nobody waits, before the job's end: it takes as long as the transport allows.
        """

        def publish() -> Published:
            return self.transport.publish(entry, outputs, lease)

        if background:
            return self._ask("write", entry.kind, entry.key, publish, patience=float("inf"), watch=False)
        return self._ask("write", entry.kind, entry.key, lambda: bounded(publish, PUBLISH_LIMIT), watch=False)

    def release(self, kind: Kind, key: str, lease: Granted, failure: Failure | None) -> None:
        """Give a lease back, if that can be done."""
        self._ask("write", kind, key, lambda: self.transport.release(kind, key, lease, failure))

    def revoked(self) -> frozenset[Withdrawn]:
        """Return (kind, key) of entries withdrawn as poisoned. Asked in the background, so past the breakers."""
        try:
            return self.transport.revoked()
        except Exception as error:  # noqa: BLE001 - the job's own requests will say what is wrong
            LOGGER.debug("neff-cache: the list of withdrawn entries could not be read: %s", error)
            return frozenset()

    def report(self, summary: Mapping[str, Any]) -> None:
        """Tell a server at a job's exit what the job had from nearer tiers, unless requests rest; it may be lost."""
        transport, limit = self.transport, min(REPORT_LIMIT, self.budget)
        self._listen()
        if not isinstance(transport, Reporting) or limit <= 0:
            return
        if not all(breaker.allows() for breaker in self._breakers.values()):
            return
        try:
            with patient(Patience(limit)):  # and not on a thread: none can be started at exit
                transport.report(summary)
        except Exception as error:  # noqa: BLE001 - counts are not worth a warning at a job's end
            LOGGER.debug("neff-cache: the report was not taken: %s", error)

    def distrust(self, kind: Kind, reason: str) -> None:
        """Count an answer against the server that was well-formed but not what was asked for."""
        self._met(kind)
        self._breakers["read"].failed()
        self._notices.warn("wrong answer", f"{self.transport.address} cannot be trusted: {reason}")

    def close(self) -> None:
        """Drop connections."""
        if self.renewer is not None:
            self.renewer.close()
        try:
            self.transport.close()
        except Exception as error:  # noqa: BLE001 - at a job's end of all times
            self._notices.warn("close", f"closing {self.transport.address}: {error}")

    @property
    def budget(self) -> float:
        """Seconds that may still be lost."""
        with self._lock:
            return max(BUDGET - self._lost, 0.0)

    def _ask(
        self,
        direction: Direction,
        kind: Kind,
        key: str,
        request: Callable[[], T],
        *,
        patience: float = 0.0,
        can_compile: bool = False,
        watch: bool = True,
    ) -> T | Unavailable:
        """Send a request. ``patience`` is how many seconds the answer may take without costing the job anything.

        Without ``watch`` it may stand still: an upload has a limit of its own.
        """
        breaker = self._breakers[direction]
        self._listen()
        if not self._strict and not breaker.allows():
            if breaker.due():
                self._ask_in_background(breaker, kind, key)
            return UNAVAILABLE
        start = self._clock()
        try:
            answer = self._send(request, Patience(self.budget + patience, can_compile), watch=watch)
        except (Damaged, TooLarge, TooSlow, Unwanted):
            # an answer, though a bad one: the caller knows what to do with it
            self.answered = True
            self._lose(self._clock() - start)
            self._met(kind)
            raise
        except Exception as error:  # a fault of a transport, of whatever sort, must not reach the job
            self._met(kind)
            self._judge(direction, error)
            took = self._clock() - start
            # of the time that it might take nothing was lost, except what it takes to find out that nobody answers
            self._lose(took - patience if took > patience else min(took, CONNECT))
            if self._outage is not None and isinstance(error, Unreachable) and not breaker.allows():
                self._outage.note()
            if self._strict:
                raise error if isinstance(error, TransportError) else Unreachable(repr(error)) from error
            return UNAVAILABLE
        self.answered = True
        breaker.succeeded()
        return answer

    def _send(self, request: Callable[[], T], patience: Patience, *, watch: bool) -> T:
        if watch and not getattr(self.transport, "heeds_patience", False):
            return watched(request, patience)
        with patient(patience):
            return request()

    def _listen(self) -> None:
        """Give the shared cache up if another process of this node has just done so: it need not be found out twice."""
        if self._outage is None or self._strict or not self._outage.heard():
            return
        for breaker in self._breakers.values():
            breaker.trip()
        self._notices.warn(
            "unreachable", f"{self.transport.address} did not answer other processes of this node: going on without it"
        )

    def _judge(self, direction: Direction, error: Exception) -> None:
        """Draw the consequences of a request that failed, and warn once of its cause."""
        address, breaker = self.transport.address, self._breakers[direction]
        match error:
            case Denied():
                breaker.stop()
                if direction == "read":
                    # who may not read cannot use what others publish, and would say so a second time
                    self._breakers["write"].stop()
                self._notices.warn(f"denied {direction}", f"{address} denies us to {direction}: {error}; going without")
            case LeaseLost():
                self.answered = True
            case Refused(status=status, name=name) if status < _SERVER_ERROR and (
                status != _TOO_MANY_REQUESTS or name == _TOO_MANY_LEASES
            ):
                self.answered = True
                breaker.succeeded()
                self._notices.warn(f"refused {status} {error.name}", f"{address} refused a request: {error}")
            case Refused(status=status):
                self.answered = True
                breaker.failed()
                self._notices.warn(f"refused {status}", f"{address} cannot serve us now: {error}; going without")
            case TransportError():
                breaker.failed()
                self._notices.warn("unreachable", f"{address} cannot be used: {error}; going on without it")
            case _:
                breaker.failed()
                self._notices.warn(
                    f"fault {type(error).__name__}", f"the request to {address} broke: {error!r}; going on without it"
                )

    def _lose(self, seconds: float) -> None:
        with self._lock:
            self._lost += max(seconds, 0.0)
            spent = self._lost > LOST_LIMIT
        if spent:
            for breaker in self._breakers.values():
                breaker.trip()

    def _ask_in_background(self, breaker: Breaker, kind: Kind, key: str) -> None:
        """Find out whether the server is back: by what a job does when it reads, by a small request when it writes."""
        probe = self.transport.fetch if breaker is self._breakers["read"] else self.transport.entry

        def ask() -> None:
            try:
                probe(kind, key)
            except Denied:
                breaker.stop()
            except Exception:  # noqa: BLE001 - whatever it is, the server is not back
                breaker.failed()
            else:
                with self._lock:
                    self._lost = min(self._lost, BUDGET - TRIAL)
                self.answered = True
                breaker.succeeded()

        threading.Thread(target=ask, name="neff-cache probe", daemon=True).start()
