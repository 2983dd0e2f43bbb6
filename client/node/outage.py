"""What the processes of a node tell each other of a shared cache that does not answer.

::

    <root>/v1/.outages/<digest of its address>      its time of change: when a process gave that cache up

Each process could find out for itself, and would lose its seconds; where they wait for each other they would lose them
one after the other.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from client.node.permissions import UntrustedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.node.tree import Tree

OUTAGES = ".outages"  # no project's name begins with a dot
LIFE = 30.0
"""Seconds for which the others believe it: as long as the first pause of a breaker."""
LOOK_EVERY = 0.5
"""Seconds between two looks of a process."""


class Outage:
    """The notes about one address. No method raises: without a node tier each process finds out for itself."""

    def __init__(
        self,
        tree: Tree,
        address: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._tree = tree
        self._name = hashlib.sha256(address.encode()).hexdigest()[:32]
        self._clock = clock
        self._now = now
        self._look_at = float("-inf")
        self._believed = float("-inf")

    def note(self) -> None:
        """Tell the others that we gave the shared cache up."""
        with suppress(OSError, UntrustedError), self._tree.directory(OUTAGES, make=True) as (directory, trust):
            self._tree.replace_file(self._name, directory, trust, b"")
            self._believed = self._tree.files.status_of(self._name, directory).st_mtime

    def heard(self) -> bool:
        """Return True, once for each time, if another process gave the shared cache up just now."""
        if self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + LOOK_EVERY
        try:
            with self._tree.directory(OUTAGES) as (directory, trust):
                status = self._tree.files.status_of(self._name, directory)
                trust.check(status, self._name)
        except (OSError, UntrustedError):
            return False
        if status.st_mtime <= self._believed or abs(self._now() - status.st_mtime) >= LIFE:
            return False
        self._believed = status.st_mtime
        return True
