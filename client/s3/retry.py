"""Trying again: bounded by one deadline for the whole operation, with pauses that spread callers out."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from client.s3.errors import Reason, S3Error

if TYPE_CHECKING:
    from collections.abc import Callable

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often. ``seconds`` bounds the start of the last try; pauses grow from ``first`` to ``longest``.

    Pauses are drawn between nothing and their bound ("full jitter"), so that many callers that were throttled together
    do not come back together. A ``Retry-After`` is followed up to ``longest``: a store that asks for a minute must not
    hold a job for a minute.
    """

    seconds: float = 20.0
    first: float = 0.1
    longest: float = 5.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    draw: Callable[[], float] = field(default=random.random, repr=False)

    def run(self, attempt: Callable[[bool], _Answer], *, renew: Callable[[], None]) -> _Answer:
        """Return what ``attempt`` returns, calling it again after passing errors; raises its last `S3Error`.

        ``attempt`` is told whether an earlier try may have taken effect although it failed. ``renew`` fetches new
        credentials; it is called at most once.
        """
        deadline = self.clock() + self.seconds
        tries = 0
        renewed = False
        while True:
            try:
                return attempt(tries > 0)
            except S3Error as error:
                if error.reason is Reason.EXPIRED and not renewed:
                    renewed = True
                    renew()
                    continue
                if not error.reason.is_passing:
                    raise
                pause = self._pause(tries, error.retry_after)
                if self.clock() + pause >= deadline:
                    raise
                tries += 1
                self.sleep(pause)

    def _pause(self, tries: int, retry_after: float | None) -> float:
        bound = min(self.longest, self.first * float(1 << min(tries, 16)))
        return max(bound * self.draw(), min(retry_after or 0.0, self.longest))
