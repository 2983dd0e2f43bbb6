"""How many requests a second a token may send: a bucket for each, in this process.

A cluster of N servers behind a balancer lets through up to N times the rate: the limit is there so that one caller
cannot crowd out the others, not to count.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from cache_server.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.access import Principal

_MOST_BUCKETS = 10_000
_ROUNDING = 1e-6
_UNLIMITED = re.compile(r"/metrics|/v1/[^/]+/[^/]+/leases/.*")
"""A scrape must not fail when it is needed most; a heartbeat that is refused would lose a compile that runs, and a
waiting poll is slow by itself."""


class Throttle:
    """One bucket for each token, or for each name that an issuer gave; callers without a token share one."""

    def __init__(
        self, rate: float | None, burst_seconds: float, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """``rate``: requests a second of a token that has none of its own; None: any number.

        ``burst_seconds``: a caller that was silent for so long may send as much at once.
        """
        self._rate = rate
        self._burst_seconds = burst_seconds
        self._monotonic = monotonic
        # until when what was sent so far is paid for: one number is the whole bucket
        self._paid: OrderedDict[str, float] = OrderedDict()

    def check(self, principal: Principal, path: str) -> None:
        """Count a request; raises `Problem` ``throttled`` with the seconds until the next one is let through."""
        rate = principal.rate or self._rate
        if rate is None or _UNLIMITED.fullmatch(path):
            return
        bucket = principal.token_id or principal.name
        now = self._monotonic()
        paid = max(self._paid.get(bucket, now), now) + 1 / rate
        # even a burst of less than a request lets one through
        ahead = paid - now - max(self._burst_seconds, 1 / rate)
        if ahead > _ROUNDING:
            raise Problem(
                "throttled",
                f"{principal.name} may send {rate:g} requests a second",
                headers={"Retry-After": str(int(ahead) + 1)},
            )
        self._paid[bucket] = paid
        self._paid.move_to_end(bucket)
        if len(self._paid) > _MOST_BUCKETS:
            # the one that was silent for longest: it has most likely its whole burst again
            self._paid.popitem(last=False)
