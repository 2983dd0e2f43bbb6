"""A miss: run the compiler, check what it made, publish it, and tell the others how it went."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from client._version import __version__
from client.artifact import Artifact
from client.errors import CompileError, Failure, NeffError, TransportError
from client.names import MAIN_OUTPUT, check_output
from client.wire import Entry, Output, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.artifact import Compiled
    from client.key import KeyDocument
    from client.lease import Compile
    from client.parts import Parts

TRIES = 2
"""How often a compiler is started that fails for a transient reason."""
INTERRUPTED = Failure("transient", "the process that compiled was interrupted")


class Compilation:
    """The compile of one program under one decision."""

    def __init__(
        self, parts: Parts, document: KeyDocument, key: str, compiler: Callable[[], Compiled], decision: Compile
    ) -> None:
        self._parts = parts
        self._document = document
        self._kind = document.kind
        self._key = key
        self._compiler = compiler
        self._decision = decision

    def run(self) -> Artifact:
        """Return the program that all shall use: ours, or the one that somebody else published first.

        Raises `CompileError`, which those who wait for us get too; any other end (an interrupt, say) leaves the
        compile to one of them. The lease is given back however this ends.
        """
        failure: Failure | None = INTERRUPTED
        try:
            compiled = self._compile()
            entry = self._describe(compiled)
            artifact = self._share(entry, compiled)
            failure = None
        except CompileError as error:
            failure = error.failure
            if self._parts.node is not None:
                self._parts.node.leave_failure(self._kind, self._key, failure, self._parts.holder.host)
            raise
        finally:
            if failure is not None:
                self._give_back(failure)
        return artifact

    def _compile(self) -> Compiled:
        """Run the compiler, once more after a transient failure; the result is one whole NEFF at least in form."""
        for last in (*(False,) * (TRIES - 1), True):
            try:
                return self._run_once()
            except CompileError as error:
                if last or error.failure.failure_class != "transient":
                    raise
                self._parts.notices.warn(
                    f"transient {self._key}", f"a compile failed ({error.failure.text}): trying once more"
                )
        raise AssertionError  # the last try returns or raises

    def _run_once(self) -> Compiled:
        parts = self._parts
        with nullcontext() if parts.node is None else parts.node.slot(self._kind):
            start = parts.clock()
            parts.tally.add(self._kind, "compiles")
            try:
                compiled = self._compiler()
            finally:
                parts.tally.add(self._kind, "compile_seconds", parts.clock() - start)
        _check(compiled)
        return compiled

    def _describe(self, compiled: Compiled) -> Entry:
        parts = self._parts
        outputs = tuple(
            Output(check_output(name), hashlib.sha256(content).hexdigest(), len(content))
            for name, content in compiled.outputs.items()
        )
        return Entry(
            project=parts.settings.project,
            kind=self._kind,
            key=self._key,
            outputs=outputs,
            created=datetime.fromtimestamp(parts.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            compile_seconds=compiled.seconds,
            producer=Producer(f"neff-cache/{__version__}", parts.holder.host, parts.settings.label),
            key_document=self._document.to_json(),
            peak_memory_bytes=compiled.peak_memory_bytes,
        )

    def _share(self, entry: Entry, compiled: Compiled) -> Artifact:
        """Publish to the cluster, then to this node; return what stands there."""
        parts, neff = self._parts, compiled.neff
        if parts.cluster is not None and self._decision.publish:
            ours, theirs = parts.cluster.publish(entry, compiled.outputs, self._decision)
            if ours:
                parts.tally.add(self._kind, "bytes_up", sum(map(len, compiled.outputs.values())))
            if theirs is not None:
                entry, neff = theirs.entry, theirs.neff
                parts.tally.add(self._kind, "bytes_down", len(neff))
        if parts.node is not None and parts.settings.mode != "off":
            stored = parts.node.put(entry, neff)
            parts.node.forget_failure(self._kind, self._key)
            if stored is not None:
                entry, neff = stored.entry, stored.neff
        return Artifact(entry, neff, "compile")

    def _give_back(self, failure: Failure) -> None:
        lease = self._decision.lease
        if lease is not None and self._parts.cluster is not None:
            with suppress(TransportError):  # with ON_ERROR=fail; the exception under way says more
                self._parts.cluster.give_back(self._kind, self._key, lease, failure)


def _check(compiled: Compiled) -> None:
    """Raise `CompileError` unless there is a whole NEFF: a compiler can end well and leave nothing, or a part."""
    from client.neff import validate  # noqa: PLC0415 - what is found compiled needs no tar reader

    log = compiled.outputs.get("compile.log", b"").decode("utf-8", "replace")
    neff = compiled.outputs.get(MAIN_OUTPUT)
    if neff is None:
        raise CompileError(Failure("transient", f"the compiler ended well but made no {MAIN_OUTPUT}", log))
    try:
        validate(neff)
    except NeffError as error:
        raise CompileError(Failure("transient", f"the compiler ended well but made a {error}", log)) from error
