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
    from client.transports.base import Transport
    from client.wire import Granted

SHORTEST_BEAT = 0.05


class Heartbeat:
    """Renews a lease from a thread of its own every third of its time to live, for at most ``limit`` seconds.

    A renewal that gets no answer is tried again at the next beat, past every breaker: while the lease may still live,
    giving it up would let a second compile start. `lost` turns True when the store says that the lease is gone.
    """

    def __init__(
        self,
        transport: Transport,
        kind: Kind,
        key: str,
        lease: Granted,
        *,
        limit: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._renew = partial(transport.renew, kind, key, lease)
        self._every = max(lease.ttl_seconds / 3, SHORTEST_BEAT)
        self._deadline = clock() + limit
        self._clock = clock
        self._stopped = threading.Event()
        self.lost = False
        self._thread = threading.Thread(target=self._beat, name=f"neff-cache lease {key[:12]}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the renewals; does not wait for one that is under way."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._every):
            if self._clock() >= self._deadline:
                # a compiler that outlives its limit must not keep the cluster waiting
                self.lost = True
                return
            try:
                self._renew()
            except (LeaseLost, Denied):
                self.lost = True
                return
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the next beat may go well
                LOGGER.debug("neff-cache: a lease was not renewed: %s", error)
