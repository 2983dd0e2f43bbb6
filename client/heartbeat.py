"""Keeps a lease alive while its holder compiles and uploads."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from client.errors import Denied, LeaseLost
from client.warnings import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.names import Kind
    from client.renewer import Renewer
    from client.transports.base import Transport
    from client.wire import Granted

SHORTEST_BEAT = 0.05
APART_AFTER = 1.0
"""Seconds after which a compile is long enough for a process of its own that keeps its lease."""


class Heartbeat:
    """Renews a lease from a thread of its own every third of its time to live, for at most ``limit`` seconds.

    A renewal that gets no answer is tried again at the next beat, past every breaker: while the lease may still live,
    giving it up would let a second compile start. `lost` turns True when the store says that the lease is gone.
    With a ``renewer`` its process does that from `APART_AFTER` seconds on, and the thread only for as long as there is
    none.
    """

    def __init__(
        self,
        transport: Transport,
        kind: Kind,
        key: str,
        lease: Granted,
        *,
        limit: float,
        renewer: Renewer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._renew = partial(transport.renew, kind, key, lease)
        self._every = max(lease.ttl_seconds / 3, SHORTEST_BEAT)
        self._deadline = clock() + limit
        self._clock = clock
        self._stopped = threading.Event()
        self._lost = False
        self._renewer = renewer
        self._keep = None if renewer is None else partial(renewer.keep, kind, key, lease)
        self._number: int | None = None
        self._thread = threading.Thread(target=self._beat, name=f"neff-cache lease {key[:12]}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether the lease is known to be somebody else's, or was held for too long."""
        renewer, number = self._renewer, self._number
        return self._lost or (renewer is not None and number is not None and renewer.has_lost(number))

    def stop(self) -> None:
        """End the renewals; does not wait for one that is under way."""
        self._stopped.set()
        if self._renewer is not None and self._number is not None:
            self._renewer.stop(self._number)

    def _beat(self) -> None:
        renewer = self._renewer
        if renewer is not None and self._keep is not None and not self._stopped.wait(min(APART_AFTER, self._every)):
            self._number = self._keep(self._deadline - self._clock())
            if self._stopped.is_set() and self._number is not None:  # meanwhile
                renewer.stop(self._number)
        while not self._stopped.wait(self._every):
            if self._clock() >= self._deadline:
                # a compiler that outlives its limit must not keep the cluster waiting
                self._lost = True
                return
            if renewer is not None and self._number is not None and renewer.keeps(self._number):
                continue
            try:
                self._renew()
            except (LeaseLost, Denied):
                self._lost = True
                return
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the next beat may go well
                LOGGER.debug("neff-cache: a lease was not renewed: %s", error)
