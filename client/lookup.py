"""One lookup: where a program is searched, who compiles it, and what is counted on the way."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from client._version import __version__
from client.artifact import Artifact
from client.errors import CacheMissError, CompileError, NeffError, TransportError
from client.lease import Compile, Found
from client.names import MAIN_OUTPUT
from client.neff import validate
from client.record import append_record, record_line
from client.statistics import HITS
from client.transports.base import Fetched
from client.wire import Entry, Failure, Output, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.artifact import Compiled, Source
    from client.cluster import Cluster
    from client.key import KeyDocument
    from client.memory import MemoryTier
    from client.names import Kind
    from client.node.guard import GuardedTier
    from client.node.lock import Turn
    from client.settings import Settings
    from client.single_flight import SingleFlight
    from client.statistics import Tally
    from client.warnings import Notices
    from client.wire import Holder

TRIES = 2
"""How often a compile is started that fails for a transient reason."""
INTERRUPTED = Failure("transient", "the process that compiled was interrupted")


@dataclass(slots=True)
class Parts:
    """What one process's cache object consists of; a forked child builds its own."""

    settings: Settings
    notices: Notices
    tally: Tally
    memory: MemoryTier
    flights: SingleFlight[Artifact]
    node: GuardedTier | None
    cluster: Cluster | None
    holder: Holder
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    revocations: threading.Lock = field(default_factory=threading.Lock)
    """Taken once and never given back: by whoever starts to read what was withdrawn."""


class Lookup:
    """The search for one key in the tiers of one process."""

    def __init__(self, parts: Parts, kind: Kind, key: str) -> None:
        self._parts = parts
        self._kind = kind
        self._key = key
        self._waited = False

    def find(self) -> Artifact | None:
        """Return the program from memory, disk or the shared cache; compiles nothing and waits for nobody."""
        self._parts.tally.add(self._kind, "lookups")
        if self._parts.settings.mode == "off":
            return self._finish(None)
        found = self._in_memory() or self._on_disk()
        return self._finish(found or self._in_cluster())

    def get_or_compile(
        self, document: KeyDocument, compiler: Callable[[], Compiled], *, retry_failed: bool
    ) -> Artifact:
        """Return the program from the nearest place that has it, or compile it; see `client.cache.Cache`."""
        parts = self._parts
        parts.tally.add(self._kind, "lookups")
        work = _Work(self, document, compiler, retry_failed=retry_failed)
        artifact: Artifact | None = None
        try:
            if parts.settings.mode == "off":
                artifact = work.compile(Compile(publish=False))
            else:
                artifact = self._in_memory()
            if artifact is None:
                artifact, followed = parts.flights.run((self._kind, self._key), work.run)
                if followed:
                    self._waited = True
                    artifact = replace(artifact, source="memory")
            return artifact
        finally:
            self._finish(artifact)


