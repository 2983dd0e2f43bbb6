"""Who may compile a key: the rules, without clock, database or network.

The order of the checks is the contract:

1. a waiter whose generation ended in failure within `WAITER_MEMORY` learns that failure, not a grant;
2. while a generation runs, everybody else waits for it;
3. a diagnosis is replayed to those who did not wait, for `DIAGNOSIS_MEMORY`: the key names the compiler build, so
   another build is another key and starts fresh;
4. after `client.failures.MANY_ATTEMPTS` other failures within `FAILURE_WINDOW`, and since the key's last entry, the key
   rests after the last one, for longer the more there were. A lease that ran out is one of them: a compile that takes
   its container along reports nothing;
5. who may not publish is denied; everybody else is granted the next generation.

``retry_failed`` passes over 3 and 4: what was remembered, not what the caller has just waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from client.failures import rest_seconds
from client.wire import Failed, Holder, NotGranted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client.errors import Failure

WAITER_MEMORY = 600.0
DIAGNOSIS_MEMORY = 300.0
FAILURE_WINDOW = 86400.0
"""A day: three compiles that each die after an hour must meet in it."""
FAILURE_LIFE = max(WAITER_MEMORY, DIAGNOSIS_MEMORY, FAILURE_WINDOW)
"""Seconds after which a failure has no effect any more and may be removed."""


@dataclass(frozen=True, slots=True)
class PastFailure:
    """A generation that ended in failure at ``time``.

    ``generation`` is negative for a lease that ran out: those who waited for it are not told, they may be the next.
    """

    generation: int
    failure: Failure
    host: str
    time: float


@dataclass(frozen=True, slots=True)
class Running:
    """The newest generation, if it is still held and has not run out."""

    generation: int
    holder: Holder
    since: float
    expires: float


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a caller asks for."""

    holder: Holder
    retry_failed: bool = False
    seen_generation: int | None = None
    may_publish: bool = True
    owner: str | None = None
    """Whose leases these are, to be counted: a token's id, or the name of a caller without a stored one."""


class Grant:
    """The caller gets the next generation."""


Decision: TypeAlias = Failed | Running | NotGranted | Grant


def next_generation(last: int | None, now: float) -> int:
    """Return a generation above every earlier one, also when the database that knew them was lost."""
    return max(int(now * 1000), 0 if last is None else last + 1)


def decide(request: LeaseRequest, running: Running | None, failures: Sequence[PastFailure], now: float) -> Decision:
    """Return what the caller gets. ``failures`` are those of the key, oldest first."""
    if seen := _seen_failure(request, failures, now):
        return seen
    if running is not None:
        return running
    if not request.retry_failed and (remembered := _remembered(failures, now)):
        return remembered
    return Grant() if request.may_publish else NotGranted()


def _seen_failure(request: LeaseRequest, failures: Sequence[PastFailure], now: float) -> Failed | None:
    for past in reversed(failures):
        if past.generation == request.seen_generation and now - past.time < WAITER_MEMORY:
            # how long a fresh request would be told the same: nothing for one that may simply be tried again
            later = _remembered(failures, now)
            return Failed(past.failure, later.expires_in if later else 0.0, replayed=False, host=past.host)
    return None


def _remembered(failures: Sequence[PastFailure], now: float) -> Failed | None:
    recent = [past for past in failures if now - past.time < FAILURE_WINDOW]
    for past in reversed(recent):
        left = past.time + DIAGNOSIS_MEMORY - now
        if past.failure.failure_class == "diagnosis" and left > 0:
            return Failed(past.failure, left, replayed=True, host=past.host)
    others = [past for past in recent if past.failure.failure_class != "diagnosis"]
    rest = rest_seconds(len(others))
    if rest:
        last = others[-1]
        left = last.time + rest - now
        if left > 0:
            return Failed(last.failure, left, replayed=True, host=last.host)
    return None
