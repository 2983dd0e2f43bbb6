"""The direct lease: one compile per key in a cluster that shares a folder or a bucket, with no server.

A lease is a file ``lease-<generation>.json`` beside the entry, created create-only; the highest generation counts. It
may be succeeded at once if it was released or failed, otherwise when its last change plus its time to live lies before
the store's own now: no clock of a node is ever compared with another's. The holder alone rewrites its file, after
reading that the nonce is still its own and that no higher generation exists; otherwise it has lost.

A lease only saves work. Entries are create-only and checked by digest, so that two holders (one of them suspended for
longer than its time to live, say) cost one compile too many, never a wrong program.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, get_args

from client.errors import Failure, LeaseLost, Unreachable, WireError
from client.failures import MANY_ATTEMPTS, ran_out, rest_seconds
from client.layout import lease_file, lease_generation
from client.wire import Failed, Granted, Holder, NotGranted, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.wire import LeaseAnswer, Ready

State: TypeAlias = Literal["held", "released", "failed"]

SCHEMA = 1
TTL_SECONDS = 30.0
DIAGNOSIS_SECONDS = 300.0
"""For how long a diagnosis holds for those who waited for it; after another failure they may try at once."""
FAILURE_SECONDS = 600.0
"""For how long those who waited are told of a failure at all."""
_TORN_SECONDS = 2.0
"""Where a name is claimed before its file is filled, that takes a moment; longer than that, its writer is gone."""
_MAX_TTL = 3600.0
_LOOKS = 10
_MOST_ATTEMPTS = 1 << 20
_POLL_SECONDS = (0.5, 5.0)
_NOBODY = Holder(host="unknown", pid=0)


class LeaseStore(Protocol):
    """The place of one key's lease files. Methods raise `client.errors.TransportError`."""

    def now(self) -> float:
        """Return the store's own time in seconds, by the clock that stamps last changes."""

    def names(self) -> list[str]:
        """Return the names of all files here."""

    def read(self, name: str) -> tuple[bytes, float] | None:
        """Return a file's bytes and the time of its last change, or None if it is not there."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file whole; False if there is one of that name, which is then left alone."""

    def replace(self, name: str, data: bytes) -> None:
        """Create a file whole, or replace it."""

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One generation as it stands in the store; ``changed`` is the time of its last change by the store's clock."""

    generation: int
    nonce: str
    holder: Holder
    since: str
    state: State = "held"
    failure: Failure | None = None
    ttl_seconds: float = TTL_SECONDS
    changed: float = 0.0
    attempts: int = 0
    """How many generations before this one, in a row, failed or ran out."""

    def encoded(self) -> bytes:
        """Return what is written to the store."""
        value: dict[str, Any] = {
            "schema": SCHEMA,
            "generation": self.generation,
            "nonce": self.nonce,
            "holder": self.holder.to_json(),
            "since": self.since,
            "ttl_seconds": self.ttl_seconds,
            "state": self.state,
            "attempts": self.attempts,
        }
        if self.failure is not None:
            value.update(self.failure.to_json())
        return json.dumps(value).encode()

    @property
    def attempts_after(self) -> int:
        """How many attempts in a row brought no program, now that this generation is over.

        A diagnosis says that the program is at fault, and one that gave its lease back had no trouble: neither counts.
        """
        failed = self.state == "held" or (self.failure is not None and self.failure.failure_class != "diagnosis")
        return self.attempts + 1 if failed else 0

    @classmethod
    def decoded(cls, raw: bytes, generation: int, changed: float) -> Standing:
        """Read what stands in the store. What nobody can read counts as held by nobody known, and so it runs out.

        What is no JSON was never written whole: it runs out in a moment. What is, may be a newer version's.
        """
        unknown = cls(generation, "", _NOBODY, _time(changed), changed=changed)
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return replace(unknown, ttl_seconds=_TORN_SECONDS)
        try:
            state, nonce, ttl = value["state"], value["nonce"], float(value["ttl_seconds"])
            if value["schema"] != SCHEMA or state not in get_args(State) or not isinstance(nonce, str):
                return unknown
            return cls(
                generation=generation,
                nonce=nonce,
                holder=Holder.from_json(value["holder"]),
                since=str(value.get("since") or unknown.since),
                state=cast("State", state),
                failure=Failure.from_json(value) if state == "failed" else None,
                ttl_seconds=ttl if 0 < ttl <= _MAX_TTL else TTL_SECONDS,
                changed=changed,
                attempts=_attempts(value.get("attempts")),
            )
        except (ValueError, KeyError, TypeError, WireError):
            return unknown


class Stillness:
    """Watches, by our own clock, for how long leases stay as they are: a living holder renews.

    For leases that the store's time cannot judge: because we may not write there and so cannot learn it, or because
    their last change lies in its future (its clock was set back, which would keep a dead lease for just as long).
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[float, float]] = {}

    def expired(self, standing: Standing) -> bool:
        """Note how ``standing`` stands; return whether it has stood like that for its time to live."""
        now = self._monotonic()
        changed, first = self._seen.get(standing.nonce, (standing.changed, now))
        if changed != standing.changed:
            first = now
        self._seen[standing.nonce] = (standing.changed, first)
        return now - first > standing.ttl_seconds


class DirectLease:
    """The lease of one key. ``nonce`` makes what tells holders apart; safe to use from several threads.

    ``ttl_seconds`` is the time to live of the leases that are taken here; that of others is read from theirs.
    """

    def __init__(
        self,
        store: LeaseStore,
        stillness: Stillness,
        *,
        ttl_seconds: float = TTL_SECONDS,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._store = store
        self._stillness = stillness
        self._ttl_seconds = ttl_seconds
        self._nonce = nonce

    def current(self) -> Standing | None:
        """Return the highest generation, or None if there is none."""
        for _ in range(_LOOKS):
            generations = self._generations()
            if not generations:
                return None
            found = self.generation(generations[-1])
            if found is not None:  # else it was tidied away since, under a higher one
                return found
        raise Unreachable(f"{lease_file(generations[-1])} is listed in the shared cache, and yet cannot be read")

    def generation(self, generation: int) -> Standing | None:
        """Return one generation, or None if it is not there (any more)."""
        found = self._store.read(lease_file(generation))
        return None if found is None else Standing.decoded(found[0], generation, found[1])

    def is_over(self, standing: Standing, now: float | None) -> bool:
        """Return whether ``standing`` may be succeeded at the store's time ``now`` (None: not known)."""
        if standing.state != "held":
            return True
        if now is None or standing.changed > now:
            return self._stillness.expired(standing)
        return standing.changed + standing.ttl_seconds < now

    def rest(self, standing: Standing, now: float) -> Failed | None:
        """Return why a generation that is over is not succeeded yet; None if it may be.

        Many attempts in a row brought no program: the next one would most likely do to its host what they did.
        """
        attempts = standing.attempts_after
        lasts = rest_seconds(attempts) + (standing.ttl_seconds if standing.state == "held" else 0.0)
        left = _left(standing, lasts, now)
        if attempts < MANY_ATTEMPTS or not left:
            return None
        holder = standing.holder
        failure = standing.failure or ran_out(holder.host, holder.pid, standing.ttl_seconds)
        return Failed(failure, left, replayed=True, host=holder.host)

    def succeed(self, standing: Standing | None, holder: Holder, now: float) -> Granted | None:
        """Take the generation after ``standing``; None if another process was quicker."""
        generation = 1 if standing is None else standing.generation + 1
        mine = Standing(
            generation,
            self._nonce(),
            holder,
            _time(now),
            ttl_seconds=self._ttl_seconds,
            attempts=0 if standing is None else standing.attempts_after,
        )
        if not self._store.create(lease_file(generation), mine.encoded()):
            return None
        # Since our look this generation may have come, ended and been tidied away under a higher one.
        if max(self._generations(), default=generation) > generation:
            self._store.remove(lease_file(generation))
            return None
        return Granted(token=mine.nonce, generation=generation, ttl_seconds=mine.ttl_seconds)

    def renew(self, lease: Granted) -> None:
        """Heartbeat; raises `client.errors.LeaseLost`."""
        mine = self._mine(lease)
        if mine is None or mine.state != "held":
            raise LeaseLost(f"the direct lease of generation {lease.generation} was taken over")
        self._store.replace(lease_file(lease.generation), mine.encoded())

    def end(self, lease: Granted, failure: Failure | None = None) -> None:
        """Mark the lease as released, or as failed. One that is lost stays as its new holder has it."""
        mine = self._mine(lease)
        if mine is not None and mine.state == "held":
            ended = replace(mine, state="released" if failure is None else "failed", failure=failure)
            self._store.replace(lease_file(lease.generation), ended.encoded())

    def tidy(self) -> None:
        """Remove all generations but the highest, which keeps the count."""
        for generation in self._generations()[:-1]:
            self._store.remove(lease_file(generation))

    def _generations(self) -> list[int]:
        return sorted(found for name in self._store.names() if (found := lease_generation(name)) is not None)

    def _mine(self, lease: Granted) -> Standing | None:
        standing = self.current()
        if standing is None or (standing.generation, standing.nonce) != (lease.generation, lease.token):
            return None
        return standing


@dataclass(frozen=True, slots=True)
class Waiting:
    """How to wait: own clock, sleep and ``uniform(low, high)``, passed in so that tests need not wait."""

    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    uniform: Callable[[float, float], float]


def acquire(
    lease: DirectLease,
    now: Callable[[], float] | None,
    ready: Callable[[], Ready | None],
    holder: Holder,
    waiting: Waiting,
    *,
    wait_seconds: float = 0,
    seen_generation: int | None = None,
) -> LeaseAnswer:
    """Take the lease, or wait up to ``wait_seconds`` for the entry (``ready``) or for the end of a living holder.

    ``now`` is the store's time, None for a caller who may not write and is granted nothing. A generation that the
    caller saw held, in this call or before (``seen_generation``), and that ended in failure is answered as `Failed`.
    """
    deadline = waiting.monotonic() + wait_seconds
    seen, longest = seen_generation, _POLL_SECONDS[0]
    while (found := ready()) is None:
        # The store's time first: writing beside the lease also makes a network file system look at it afresh.
        time = None if now is None else now()
        standing = lease.current()
        if seen is not None:
            # One look decides both: whoever sees the generation fail must not find it held first and over then.
            ended = standing if standing is not None and standing.generation == seen else lease.generation(seen)
            if (failed := _failed(ended, time)) is not None:
                return failed
        if standing is None or lease.is_over(standing, time):
            if time is None:
                return NotGranted()
            if standing is not None and (resting := lease.rest(standing, time)) is not None:
                return resting
            granted = lease.succeed(standing, holder, time)
            if granted is None:
                continue
            if (found := ready()) is None:
                return granted
            lease.end(granted)
            break
        seen = standing.generation
        left = deadline - waiting.monotonic()
        if left <= 0:
            return Wait(
                standing.generation, standing.holder, standing.since, _left(standing, standing.ttl_seconds, time)
            )
        longest = min(longest * 2, _POLL_SECONDS[1])
        waiting.sleep(min(left, waiting.uniform(_POLL_SECONDS[0], longest)))
    return found


def _failed(standing: Standing | None, now: float | None) -> Failed | None:
    if standing is None or standing.failure is None or not _left(standing, FAILURE_SECONDS, now):
        return None
    lasts = DIAGNOSIS_SECONDS if standing.failure.failure_class == "diagnosis" else 0.0
    return Failed(standing.failure, _left(standing, lasts, now), host=standing.holder.host)


def _left(standing: Standing, lasts: float, now: float | None) -> float:
    return lasts if now is None else max(0.0, min(lasts, standing.changed + lasts - now))


def _attempts(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_ATTEMPTS else 0


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
