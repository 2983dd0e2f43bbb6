"""One lookup: where a program is searched, who compiles it, and what is counted on the way."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from client.artifact import Artifact
from client.compiling import Compilation
from client.errors import CacheMissError, CompileError
from client.lease import Compile, Found
from client.record import append_record, record_line
from client.statistics import HITS
from client.transports.base import Fetched
from client.warnings import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.artifact import Compiled, Source
    from client.key import KeyDocument
    from client.names import Kind
    from client.node.lock import LeftFailure
    from client.parts import Parts
    from client.transports.base import Withdrawn
    from client.wire import Entry, Holder


class Lookup:
    """The search for one key, in the order of the tiers."""

    def __init__(self, parts: Parts, kind: Kind, key: str) -> None:
        self._parts = parts
        self._kind = kind
        self._key = key
        self._waited = False
        self._module_bytes = 0
        self._begin = parts.clock()
        parts.tally.add(kind, "lookups")

    def find(self) -> Artifact | None:
        """Return the program from memory, disk or the shared cache, or None; waits for nobody."""
        artifact: Artifact | None = None
        try:
            if self._parts.settings.mode != "off":
                artifact = self._in_memory() or self._on_disk() or self._in_cluster()
        finally:
            self._count(artifact)
        return artifact

    def find_or_compile(
        self, document: KeyDocument, compiler: Callable[[], Compiled], *, retry_failed: bool, module_bytes: int = 0
    ) -> Artifact:
        """Return the program from the nearest place that has it, or compile it; see `client.cache.Cache`."""
        self._module_bytes = module_bytes
        artifact: Artifact | None = None
        try:
            if self._parts.settings.mode == "off":
                artifact = self._compile(document, compiler, Compile(publish=False))
            else:
                artifact = self._in_memory()
            if artifact is None:
                flight = (self._kind, self._key)
                artifact, other = self._parts.flights.run(
                    flight, lambda: self._lead(document, compiler, retry_failed=retry_failed)
                )
                if other:
                    self._waited = True
                    artifact = replace(artifact, source="memory")
        finally:
            self._count(artifact)
        return artifact

    def _lead(self, document: KeyDocument, compiler: Callable[[], Compiled], *, retry_failed: bool) -> Artifact:
        """Search and compile on behalf of all threads of this process."""
        # once more: another thread may have ended its flight between our look and ours
        return self._in_memory() or self._on_disk() or self._on_this_node(document, compiler, retry_failed=retry_failed)

    def _on_this_node(self, document: KeyDocument, compiler: Callable[[], Compiled], *, retry_failed: bool) -> Artifact:
        """Search and compile on behalf of all processes of this node, when it is our turn."""
        parts = self._parts
        with ExitStack() as stack:
            if parts.node is not None:
                turn = stack.enter_context(parts.node.turn(self._kind, self._key, parts.holder, waiting=self._tell))
                self._waited = turn.seconds > 0
                found = self._on_disk()
                if found is not None:
                    return found
                if turn.failure is not None and not retry_failed:
                    raise _shared(turn.failure)
            if parts.settings.on_miss == "fail":
                found = self._in_cluster()
                if found is None:
                    raise self._missed()
                return found
            decision = self._decide(retry_failed=retry_failed)
            if isinstance(decision, Found):
                return self._fetched(decision.fetched)
            return self._compile(document, compiler, decision)

    def _decide(self, *, retry_failed: bool) -> Found | Compile:
        parts = self._parts
        if parts.cluster is None:
            return Compile(publish=False)
        self._drop_revoked()
        decision = parts.cluster.decide(self._kind, self._key, retry_failed=retry_failed)
        self._waited = self._waited or decision.waited
        return decision

    def _compile(self, document: KeyDocument, compiler: Callable[[], Compiled], decision: Compile) -> Artifact:
        compilation = Compilation(self._parts, document, self._key, compiler, decision, module_bytes=self._module_bytes)
        return self._keep(compilation.run())

    def _in_memory(self) -> Artifact | None:
        return self._parts.memory.get(self._kind, self._key)

    def _on_disk(self) -> Artifact | None:
        stored = None if self._parts.node is None else self._parts.node.get(self._kind, self._key)
        return None if stored is None else self._keep(Artifact(stored.entry, stored.neff, "disk"))

    def _in_cluster(self) -> Artifact | None:
        if self._parts.cluster is None:
            return None
        self._drop_revoked()
        look = self._parts.cluster.look(self._kind, self._key)
        return self._fetched(look) if isinstance(look, Fetched) else None

    def _fetched(self, fetched: Fetched) -> Artifact:
        parts = self._parts
        parts.tally.add(self._kind, "bytes_down", len(fetched.neff))
        stored = None if parts.node is None else parts.node.put(fetched.entry, fetched.neff)
        if stored is None:
            return self._keep(Artifact(fetched.entry, fetched.neff, "remote"))
        return self._keep(Artifact(stored.entry, stored.neff, "remote"))

    def _keep(self, artifact: Artifact) -> Artifact:
        if self._parts.settings.mode != "off":
            self._parts.memory.put(replace(artifact, source="memory"))
        return artifact

    def _drop_revoked(self) -> None:
        """Read once per process, beside its first remote request, what was withdrawn as poisoned, and forget it."""
        parts = self._parts
        if parts.cluster is None or not parts.revocations.acquire(blocking=False):
            return
        cluster, node, memory = parts.cluster, parts.node, parts.memory

        def drop() -> None:
            for withdrawn in cluster.revoked():
                where = withdrawn.kind, withdrawn.key
                held = memory.get(*where)
                if held is not None and _is(held.entry, withdrawn):
                    memory.remove(*where)
                stored = None if node is None else node.get(*where)
                if node is not None and stored is not None and _is(stored.entry, withdrawn):
                    node.remove(*where)

        threading.Thread(target=drop, name="neff-cache revocations", daemon=True).start()

    def _count(self, artifact: Artifact | None) -> None:
        """Count how the lookup ended, and record a key's first use."""
        parts, kind = self._parts, self._kind
        if self._waited:
            parts.tally.add(kind, "waits")
        if artifact is None or artifact.source not in HITS:
            parts.tally.add(kind, "misses")
        else:
            parts.tally.add(kind, HITS[artifact.source])
        self._log(artifact)
        if artifact is None or not parts.tally.first_use(kind, self._key):
            return
        if artifact.source in _SAVING:
            parts.tally.add(kind, "saved_seconds", artifact.entry.compile_seconds)
        if parts.settings.record is not None and parts.settings.mode != "off":
            path = parts.settings.expand(parts.settings.record)
            try:
                append_record(path, record_line(artifact.entry, parts.settings.label))
            except OSError as error:
                parts.notices.warn("record", f"cannot write NEURON_CACHE_RECORD={path}: {error}")

    def _log(self, artifact: Artifact | None) -> None:
        """Say how the lookup ended, so that the logs of two runs can be compared key by key."""
        if not LOGGER.isEnabledFor(logging.INFO):
            return
        ended, size = ("nowhere", 0) if artifact is None else (artifact.source, len(artifact.neff))
        level = logging.DEBUG if ended == "memory" else logging.INFO
        seconds = self._parts.clock() - self._begin
        LOGGER.log(level, "neff-cache: %s/%s %s, %d bytes, %.3f s", self._kind, self._key, ended, size, seconds)

    def _tell(self, owner: Holder | None, seconds: float) -> None:
        who = "another process of this node" if owner is None else str(owner)
        self._parts.notices.waiting(
            f"waiting for {who}, which works on {self._kind}/{self._key[:12]}; {seconds:.0f} s so far"
        )

    def _missed(self) -> CacheMissError:
        settings = self._parts.settings
        places = [str(settings.node_dir)] if self._parts.node is not None else []
        places += [self._parts.cluster.address] if self._parts.cluster is not None else []
        return CacheMissError(
            f"{self._kind}/{self._key} is in none of {', '.join(places) or 'no tier at all'}, and"
            " NEURON_CACHE_ON_MISS=fail forbids to compile it: run `neff-cache pull` or `prewarm` first, or `why` to"
            " see which part of the key differs"
        )


_SAVING: frozenset[Source] = frozenset({"disk", "remote"})


def _shared(left: LeftFailure) -> CompileError:
    """Return the failure that another process of this node left beside its lock, as our own."""
    return CompileError(left.failure, origin=f"{left.host}, {left.age:.0f} s ago")


def _is(entry: Entry, withdrawn: Withdrawn) -> bool:
    """Return whether ``entry`` is the withdrawn one, and not a good one published under its key since."""
    main = entry.output()
    return main is not None and main.sha256 == withdrawn.sha256
