"""A shared cache that is a folder: a path or ``file://``, on one machine or on a network file system.

Writes are create-only (`client.transports.shared_files`); all else is said by `client.transports.direct`.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from client.transports.direct import DirectTransport
from client.transports.direct_lease import TTL_SECONDS
from client.transports.entry_folder import EntryFolder
from client.transports.shared_files import SharedFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from client.names import Kind


class DirectoryTransport(DirectTransport):
    """`client.transports.base.Transport` over the folder ``root``; see `DirectTransport` for the other arguments."""

    def __init__(
        self,
        root: Path,
        project: str,
        *,
        lease_seconds: float = TTL_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        super().__init__(project, lease_seconds=lease_seconds, monotonic=monotonic, sleep=sleep, uniform=uniform)
        self._root = root
        self._files = SharedFolder(root)

    @property
    def address(self) -> str:
        """The folder, as a URL."""
        return self._root.as_uri()

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def _at(self, kind: Kind, key: str) -> EntryFolder:
        return EntryFolder(self._files, self._project, kind, key, self._waiting)
