"""The cache as a job uses it: one call that returns a compiled program, from the nearest place that has it.

::

    memory -> node disk -> [one process per key on this node] -> shared cache -> [lease: one compile in the cluster]
           -> compile -> check -> publish

Whatever goes wrong in the cache costs a hit, never the job. Only the compiler's own failure is raised.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from client._version import __version__
from client.artifact import Artifact
from client.cluster import Cluster
from client.errors import CacheMissError, CompileError, ConfigurationError, NeffError, WireError
from client.lease import Compile, Found
from client.memory import MAX_BYTES, MemoryTier
from client.names import MAIN_OUTPUT
from client.neff import validate
from client.node.guard import GuardedTier
from client.record import add_to_summary, append_record, record_line
from client.remote import Remote
from client.settings import Settings
from client.single_flight import SingleFlight
from client.statistics import HITS, Tally
from client.transports.base import Fetched
from client.warnings import Notices
from client.wire import Entry, Failure, Holder, Output, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client.artifact import Compiled, Source
    from client.key import KeyDocument
    from client.names import Kind
    from client.node.files import Files
    from client.node.lock import LeftFailure
    from client.statistics import Statistics
    from client.transports.base import Transport

TRANSIENT_TRIES = 2
"""How often a compile is started that fails for no reason of its own."""


@dataclass(slots=True)
class _Parts:
    """All that one process's cache object consists of; a forked child builds its own."""

    pid: int
    notices: Notices
    tally: Tally
    memory: MemoryTier
    flights: SingleFlight[Artifact]
    node: GuardedTier | None
    cluster: Cluster | None
    holder: Holder


class Cache:
    """One cache object: its own memory tier, statistics and connections. Safe to use from several threads and forks.

    Make it with `from_environment`, and `close` it at the end; that happens at the interpreter's exit as well.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        open_transport: Callable[[], Transport] | None = None,
        files: Files | None = None,
        memory_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._open_transport = open_transport
        self._files = files
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._sleep = sleep
        self._now = now
        self._closed = False
        self._forked = False
        self._lock = threading.Lock()
        self._built: _Parts | None = self._build()
        for number, problem in enumerate(settings.problems):
            self._built.notices.warn(f"setting {number}", problem)
        _caches.add(self)
        atexit.register(self.close)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Cache:
        """Return a cache by the ``NEURON_CACHE_*`` settings of ``environ`` (default: the process's own).

        Raises `ConfigurationError` for a setting that means nothing, but only where ``NEURON_CACHE_ON_ERROR=fail``.
        """
        environ = os.environ if environ is None else environ
        settings = Settings.from_environment(environ)
        url = settings.url

        def opened() -> Transport:
            from client.transports import open_transport  # noqa: PLC0415 - a job without a shared cache needs none

            if url is None:
                raise ConfigurationError("NEURON_CACHE_URL is not set")
            return open_transport(url, settings.project, environ)

        return cls(settings, open_transport=None if url is None else opened)

    def get_or_compile(
        self, document: KeyDocument, compile: Callable[[], Compiled], *, retry_failed: bool = False  # noqa: A002
    ) -> Artifact:
        """Return the program of ``document``, compiled by ``compile`` if it is nowhere.

        Threads, processes of this node and nodes of the cluster that ask for one key at a time share one compile.
        ``retry_failed`` compiles even if the compiler is known to refuse this program.

        Raises `CompileError` if the compiler failed, here or where we waited for it; `CacheMissError` where
        ``NEURON_CACHE_ON_MISS=fail``; `TransportError` and `ConfigurationError` only where
        ``NEURON_CACHE_ON_ERROR=fail``.
        """
        lookup = _Lookup(self, self._parts(), document, compile, retry_failed=retry_failed)
        return lookup.run()

    def lookup(self, kind: Kind, key: str) -> Artifact | None:
        """Return a program from memory, disk or the shared cache, or None; compiles nothing and waits for nobody."""
        raise NotImplementedError
