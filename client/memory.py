"""The memory tier: programs this process has used lately, bounded by their bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client.artifact import Artifact

MAX_BYTES = 256 << 20


class MemoryTier:
    """Least recently used goes first. Small on purpose: backends keep loaded programs themselves.

    Safe to use from several threads. A program larger than ``max_bytes`` is not kept.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[tuple[str, str], Artifact] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, kind: str, key: str) -> Artifact | None:
        """Return the artifact, or None."""
        with self._lock:
            found = self._held.get((kind, key))
            if found is not None:
                self._held.move_to_end((kind, key))
            return found

    def put(self, artifact: Artifact) -> None:
        """Keep the artifact, and drop the least recently used ones beyond the bound."""
        name = (str(artifact.entry.kind), artifact.key)
        with self._lock:
            before = self._held.pop(name, None)
            self._bytes -= 0 if before is None else len(before.neff)
            if len(artifact.neff) > self._max_bytes:
                return
            self._held[name] = artifact
            self._bytes += len(artifact.neff)
            while self._bytes > self._max_bytes:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= len(dropped.neff)

    def remove(self, kind: str, key: str) -> None:
        """Drop an artifact, if it is held."""
        with self._lock:
            dropped = self._held.pop((kind, key), None)
            self._bytes -= 0 if dropped is None else len(dropped.neff)
