"""The cache as a job uses it: one call that returns a compiled program, from the nearest place that has it.

::

    memory -> node disk -> [one process per key on this node] -> shared cache -> [lease: one compile in the cluster]
           -> compile -> check -> publish

Whatever goes wrong in the cache costs a hit, never the job. Only the compiler's own failure is raised.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from client import look_alikes
from client.cluster import Cluster
from client.errors import CacheMissError, CompileError, NeffCacheError, WireError
from client.lookup import Lookup
from client.memory import MAX_BYTES, MemoryTier
from client.node.guard import GuardedTier
from client.parts import Parts
from client.record import add_to_summary, look_ahead
from client.remote import Remote
from client.settings import Settings
from client.single_flight import SingleFlight
from client.statistics import Tally
from client.uploads import FLUSH_LIMIT
from client.warnings import Notices
from client.wire import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client.artifact import Artifact, Compiled
    from client.key import KeyDocument
    from client.names import Kind
    from client.node.files import Files
    from client.renewer import Renewer
    from client.statistics import Statistics
    from client.transports.base import Transport

UPLOAD_GRACE = 0.25
"""Seconds for which a job waits for an upload that could go on in the background: most are over by then."""


class Cache:
    """One cache object: its own memory tier, statistics and connections. Safe to use from several threads and forks.

    Make it with `from_environment`, and `close` it at the end; that happens at the interpreter's exit as well.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        open_transport: Callable[[], Transport] | None = None,
        open_renewer: Callable[[], Renewer] | None = None,
        files: Files | None = None,
        memory_bytes: int = MAX_BYTES,
        upload_grace: float = UPLOAD_GRACE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._open_transport = open_transport
        self._open_renewer = open_renewer
        self._files = files
        self._memory_bytes = memory_bytes
        self._upload_grace = upload_grace
        self._clock = clock
        self._sleep = sleep
        self._now = now
        self._closed = False
        self._forked = False
        self._lock = threading.Lock()
        self._parts: Parts | None = self._build()
        for number, problem in enumerate(settings.problems):
            self._parts.notices.warn(f"setting {number}", problem)
        _caches.add(self)
        atexit.register(self.close)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, *, busy: bool = True) -> Cache:
        """Return a cache by the ``NEURON_CACHE_*`` settings of ``environ`` (default: the process's own).

        In a process that is ``busy`` with other things than to wait for its compiler, long leases of a server are
        renewed by a small process of their own (`client.renewer`).

        Raises `ConfigurationError` for a setting that means nothing, but only where ``NEURON_CACHE_ON_ERROR=fail``.
        """
        environ = os.environ if environ is None else environ
        settings = Settings.from_environment(environ)
        url = settings.url
        if settings.mode == "off":
            return cls(settings)

        def opened(url: str) -> Transport:
            from client.transports import open_transport  # noqa: PLC0415 - a job without a shared cache needs none

            return open_transport(url, settings.project, environ)

        def renewing(url: str) -> Renewer:
            from client.renewer import Renewer  # noqa: PLC0415 - as above

            return Renewer(url, settings.project, environ)

        is_server = url is not None and url.lower().startswith(("http://", "https://"))
        cache = cls(
            settings,
            open_transport=None if url is None else partial(opened, url),
            open_renewer=partial(renewing, url) if url is not None and is_server and busy else None,
        )
        for name, sentence in look_alikes.answers(environ, url):
            cache._mine().notices.warn(f"setting {name}", sentence)
        return cache

    def get_or_compile(
        self,
        document: KeyDocument,
        compile: Callable[[], Compiled],  # noqa: A002 - says best what it is
        *,
        retry_failed: bool = False,
        module_bytes: int = 0,
    ) -> Artifact:
        """Return the program of ``document``, compiled by ``compile`` if it is nowhere.

        Threads, processes of this node and nodes of the cluster that ask for one key at a time share one compile.
        ``compile`` raises `CompileError` if it fails, and must not ask this cache in turn: that could wait for itself.
        ``retry_failed`` compiles even if the compiler is known to refuse this program. ``module_bytes``, the size of
        what is compiled, serves to guess the memory that the compiler will take; 0 if it is not known.

        Raises `CompileError` if the compiler failed, here or where we waited for it; `CacheMissError` where
        ``NEURON_CACHE_ON_MISS=fail``; `TransportError` and `ConfigurationError` only where
        ``NEURON_CACHE_ON_ERROR=fail``.
        """
        lookup = Lookup(self._mine(), document.kind, document.key)
        return lookup.find_or_compile(document, compile, retry_failed=retry_failed, module_bytes=module_bytes)

    def compile_aside(
        self,
        document: KeyDocument,
        compile: Callable[[], Compiled],  # noqa: A002 - as above
        *,
        module_bytes: int = 0,
    ) -> Compiled:
        """Run ``compile`` in its turn among the compilers of this node; nothing is looked up, kept or counted."""
        node = self._mine().node
        if node is None:
            return compile()
        with node.admission(document.kind, document.compiler, module_bytes, alone=False) as learn:
            compiled = compile()
            learn(compiled.peak_memory_bytes)
        return compiled

    def count_shadow(self, name: str) -> None:
        """Have the statistics say how a hit compared that was compiled once more; ``name`` is the outcome."""
        self._mine().tally.add_shadow(name)

    def lookup(self, kind: Kind, key: str) -> Artifact | None:
        """Return a program from memory, disk or the shared cache, or None; compiles nothing and waits for nobody."""
        return Lookup(self._mine(), kind, key).find()

    @property
    def statistics(self) -> Statistics:
        """A snapshot of what this object did in this process."""
        return self._mine().tally.snapshot()

    def close(self) -> None:
        """Wait for uploads, add to ``NEURON_CACHE_SUMMARY``, report to a server and drop connections.

        Idempotent; takes 12 s at most. What is looked up later is not added, and uploaded at once.
        """
        with self._lock:
            parts, closed, self._closed = self._parts, self._closed, True
        atexit.unregister(self.close)
        if closed or parts is None:
            return
        if parts.cluster is not None:
            lost = parts.uploads.flush(min(FLUSH_LIMIT, parts.cluster.budget))
            if lost:
                parts.notices.warn("uploads", f"{lost} programs were not uploaded in time: others compile them again")
        statistics = parts.tally.snapshot()
        # a forked child that never used the cache has nothing to say
        if self.settings.summary is not None and (statistics.lookups or not self._forked):
            path = self.settings.expand(self.settings.summary)
            try:
                add_to_summary(path, statistics, clock=self._clock, sleep=self._sleep)
            except (OSError, WireError) as error:
                parts.notices.warn("summary", f"cannot write NEURON_CACHE_SUMMARY: {error}")
        if parts.cluster is not None:
            if statistics.lookups:
                parts.cluster.report(statistics)
            parts.cluster.close()

    def _mine(self) -> Parts:
        """Return the parts of this process."""
        parts = self._parts
        if parts is None:
            with self._lock:
                parts = self._parts = self._parts or self._build()
        return parts

    def _forget(self) -> None:
        """In a forked child: leave connections, counts and locks to the parent, and begin anew at the next use."""
        self._lock = threading.Lock()
        if self._parts is not None and self._parts.cluster is not None:
            self._parts.cluster.forget()
        self._parts = None
        self._forked = True

    def _build(self) -> Parts:
        settings, notices, tally = self.settings, Notices(), Tally(os.getpid())
        holder = Holder(socket.gethostname(), os.getpid(), settings.rank, settings.label)

        def met(kind: Kind) -> None:
            tally.add(kind, "errors")

        signing = None
        if settings.asks_about_signatures and settings.mode != "off":
            from client.signing.job import open_signing  # noqa: PLC0415 - most jobs need none of it

            signing = open_signing(settings, notices, met=met)
            if not signing.may_publish and settings.mode == "rw":
                settings = replace(settings, mode="ro")
        elif self._open_transport is not None:
            from client.signing.notice import tell_unauthenticated  # noqa: PLC0415 - as above

            tell_unauthenticated(settings, notices)
        check = None if signing is None else signing.check

        if settings.summary is not None:
            look_ahead(settings.expand(settings.summary))
        node = None
        if settings.node_dir is not None and settings.mode != "off":
            node = GuardedTier(
                settings.node_dir,
                settings,
                notices,
                met=met,
                files=self._files,
                clock=self._clock,
                sleep=self._sleep,
                now=self._now,
                check=check,
            )
        cluster = None
        transport = self._opened(notices)
        if transport is not None:
            remote = Remote(
                transport,
                notices,
                met=met,
                strict=settings.on_error == "fail",
                outage=None if node is None else node.outage(transport.address),
                renewer=None if self._open_renewer is None else self._open_renewer(),
                clock=self._clock,
            )
            cluster = Cluster(remote, settings, holder, notices, check=check, clock=self._clock, sleep=self._sleep)
        return Parts(
            settings=settings,
            notices=notices,
            tally=tally,
            memory=MemoryTier(self._memory_bytes),
            flights=SingleFlight(shared=(CompileError, CacheMissError)),
            node=node,
            cluster=cluster,
            holder=holder,
            signer=None if signing is None else signing.signer,
            upload_grace=self._upload_grace,
            clock=self._clock,
            now=self._now,
        )

    def _opened(self, notices: Notices) -> Transport | None:
        if self._open_transport is None:
            return None
        try:
            return self._open_transport()
        except (NeffCacheError, OSError) as error:
            if self.settings.on_error == "fail":
                raise
            notices.warn("transport", f"nothing is shared: {error}")
            return None


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


def _forget_in_child() -> None:
    for cache in list(_caches):
        cache._forget()  # noqa: SLF001 - the other half of the class


os.register_at_fork(after_in_child=_forget_in_child)
