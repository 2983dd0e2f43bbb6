"""The conversation about the lease of one key: asking, waiting, and what to make of a failure elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from client.errors import CompileError
from client.heartbeat import Heartbeat
from client.wire import Failed, Granted, NotGranted, Ready, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.names import Kind
    from client.remote import Remote
    from client.settings import Settings
    from client.transports.base import Fetched
    from client.warnings import Notices
    from client.wire import Holder

POLL = 25.0
"""Seconds that one waiting poll may take."""
FIRST_POLL = 1.0
"""Seconds that the first one may take: a server that never answers it costs as many seconds more than an answer may."""
SHORTEST_POLL = 0.5
"""Seconds between two polls if the answers come at once, as they may from a store without long polls."""
TELL_AFTER = 5.0
DIAGNOSIS_LIFE = 300.0
"""Seconds for which the store remembers a diagnosis."""
LONGEST_FAILURE = 60.0
"""Seconds for which a job believes, in all, a server that tells it to wait after a failed compile."""
LONGEST_IDLE = 10.0
"""Seconds for which a job waits, in all, on the word of a server that names nobody who compiles."""


@dataclass(slots=True)
class HeldLease:
    """A lease of ours, and the thread that keeps it alive."""

    granted: Granted
    heartbeat: Heartbeat

    @property
    def alive(self) -> bool:
        """Whether the lease is still ours, as far as we know."""
        return not self.heartbeat.lost


@dataclass(frozen=True, slots=True)
class Found:
    """The program is there. ``waited`` says whether another process compiled it meanwhile."""

    fetched: Fetched
    waited: bool = False


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile it here. ``publish`` says whether the cluster may have the result."""

    lease: HeldLease | None = None
    publish: bool = True
    waited: bool = False


Decision: TypeAlias = Found | Compile


class Conversation:
    """Asks for the lease of one key until there is a decision. `waited` says whether it waited for another process."""

    def __init__(
        self,
        remote: Remote,
        settings: Settings,
        holder: Holder,
        notices: Notices,
        *,
        kind: Kind,
        key: str,
        retry_failed: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._remote = remote
        self._settings = settings
        self._holder = holder
        self._notices = notices
        self._kind = kind
        self._key = key
        self._retry_failed = retry_failed
        self._clock = clock
        self._sleep = sleep
        self._start = clock()
        self._seen_generation: int | None = None
        self._failed_before = False
        self._told = False
        self._lives = False
        self.waited = False

    def run(self) -> Compile | None:
        """Return how to compile, or None if the entry is said to be ready.

        Raises `CompileError` for a diagnosis that another process met with this very program.
        """
        may_publish = self._settings.mode == "rw"
        while True:
            asked_at = self._clock()
            answer = self._remote.acquire(
                self._kind,
                self._key,
                self._holder,
                wait_seconds=self._poll(),
                living_holder=self._lives,
                seen_generation=self._seen_generation,
                retry_failed=self._retry_failed,
                may_publish=may_publish,
            )
            match answer:
                case Ready():
                    self.waited = True  # it was not there when we looked
                    return None
                case Granted():
                    # no third look: a lease is granted only after the store was asked for the entry
                    return Compile(self._hold(answer), may_publish, self.waited)
                case NotGranted():
                    return Compile(publish=False, waited=self.waited)
                case Wait():
                    if not self._wait(answer, asked_at):
                        return self._alone(publish=may_publish)
                case Failed():
                    if self._has_failed_again(answer):
                        return self._alone(publish=may_publish)
                case _:
                    return self._alone(publish=may_publish)

    def _patience(self) -> float:
        """Return how many seconds we may still wait; what the job has waited in vain for other programs counts."""
        waited = self._clock() - self._start + self._remote.waited.in_vain
        return max(self._settings.wait_limit - waited, 0.0)

    def _poll(self) -> float:
        """Return how many seconds the next poll may take: whoever waits should soon hear for whom."""
        if self._seen_generation is None:
            return min(FIRST_POLL, self._patience())
        if not self._lives:
            return min(FIRST_POLL, self._idle(), self._patience())
        return min(POLL if self._told else TELL_AFTER, self._patience())

    def _idle(self) -> float:
        """Return for how many seconds the job may still wait for nobody."""
        return max(LONGEST_IDLE - self._remote.waited.idle, 0.0)

    def _alone(self, *, publish: bool) -> Compile:
        return Compile(None, publish, self.waited)

    def _hold(self, granted: Granted) -> HeldLease:
        limit = self._settings.compile_limit
        heartbeat = Heartbeat(
            self._remote.transport,
            self._kind,
            self._key,
            granted,
            limit=limit,
            renewer=self._remote.renewer,
            clock=self._clock,
        )
        return HeldLease(granted, heartbeat)

    def _wait(self, answer: Wait, asked_at: float) -> bool:
        """Take note of whom we wait for, and pause before the next poll; False if we have waited for long enough."""
        if self._patience() <= 0:
            self._remote.waited.in_vain += self._clock() - self._start
            self._notices.warn("wait limit", f"{answer.holder} takes too long: compiling here as well")
            return False
        self.waited = True
        self._lives = answer.names_a_living_holder and answer.generation >= (self._seen_generation or 0)
        self._seen_generation = answer.generation
        now = self._clock()
        if not self._lives:
            self._remote.waited.idle += max(now - asked_at, SHORTEST_POLL)
            if not self._idle():
                self._notices.warn(
                    "nobody compiles",
                    f"{self._remote.transport.address} says to wait for {self._kind}/{self._key[:12]}, and names nobody"
                    " whose lease has time left: compiling here",
                )
                return False
        if self._lives and not self._told and now - self._start >= TELL_AFTER:
            self._told = True
            self._notices.waiting(
                f"waiting for {answer.holder}, which compiles {self._kind}/{self._key[:12]} since {answer.since}"
            )
        if now - asked_at < SHORTEST_POLL:
            self._sleep(min(SHORTEST_POLL, self._patience()))
        return True

    def _has_failed_again(self, answer: Failed) -> bool:
        """Raise a diagnosis; wait once after another failure; return True when that has not helped."""
        failure = answer.failure
        where = answer.host or "another node"
        if failure.failure_class == "diagnosis":
            age = f", {max(DIAGNOSIS_LIFE - answer.expires_in, 0):.0f} s ago" if answer.replayed else ""
            raise CompileError(failure, origin=where + age)
        if self._failed_before:
            return True
        self._failed_before = True
        self._seen_generation = None
        self.waited = True
        self._notices.warn(
            f"failed elsewhere {self._key}",
            f"the compile of {self._kind}/{self._key[:12]} failed on {where} ({failure.text}): trying again",
        )
        waited = self._remote.waited
        pause = max(min(answer.expires_in, LONGEST_FAILURE - waited.after_failures, self._patience()), 0.0)
        waited.after_failures += pause
        self._sleep(pause)
        return False
