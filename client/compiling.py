"""A miss: run the compiler, check what it made, publish it, and tell the others how it went."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from client._version import __version__
from client.artifact import Artifact
from client.errors import CompileError, Failure, NeffError, NothingMade, TransportError
from client.names import MAIN_OUTPUT, check_output
from client.wire import Entry, Output, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.artifact import Compiled
    from client.cluster import Cluster
    from client.key import KeyDocument
    from client.lease import Compile
    from client.parts import Parts
    from client.transports.base import Published

TRIES = 2
"""How often a compiler is started that fails for a reason which may have passed."""
INTERRUPTED = Failure("transient", "the process that compiled was interrupted")


class Compilation:
    """The compile of one program under one decision."""

    def __init__(
        self,
        parts: Parts,
        document: KeyDocument,
        key: str,
        compiler: Callable[[], Compiled],
        decision: Compile,
        *,
        module_bytes: int = 0,
    ) -> None:
        self._parts = parts
        self._document = document
        self._kind = document.kind
        self._key = key
        self._compiler = compiler
        self._decision = decision
        self._module_bytes = module_bytes
        self._seconds = 0.0

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
            told = self._told(error)
            failure = told.failure
            if self._parts.node is not None:
                self._parts.node.leave_failure(self._kind, self._key, failure, self._parts.holder.host)
            raise told from error.__cause__
        finally:
            if failure is not None:
                self._give_back(failure)
        return artifact

    def _compile(self) -> Compiled:
        """Run the compiler, once more after a failure that is not the program's own; the result is a NEFF in form.

        One that ran out of memory, or was killed, is alone on the node when it is started again.
        """
        parts, alone = self._parts, False
        for last in (*(False,) * (TRIES - 1), True):
            try:
                return self._run_once(alone=alone)
            except CompileError as error:
                failure = error.failure
                # a compiler that was stopped at its limit would be so again
                if last or failure.failure_class == "diagnosis" or self._seconds >= parts.settings.compile_limit:
                    raise
                alone = failure.failure_class == "resource"
                how = "once more, with no other compiler beside it" if alone else "once more"
                parts.notices.warn(
                    f"{failure.failure_class} {self._key}", f"a compile failed ({failure.text}): trying {how}"
                )
        raise AssertionError  # the last try returns or raises

    def _run_once(self, *, alone: bool) -> Compiled:
        parts, node = self._parts, self._parts.node
        with ExitStack() as stack:
            learn: Callable[[int | None], None] | None = None
            if node is not None:
                learn = stack.enter_context(
                    node.admission(self._kind, self._document.compiler, self._module_bytes, alone=alone)
                )
            start = parts.clock()
            parts.tally.add(self._kind, "compiles")
            try:
                compiled = self._compiler()
            finally:
                self._seconds = parts.clock() - start
                parts.tally.add(self._kind, "compile_seconds", self._seconds)
            if learn is not None:
                learn(compiled.peak_memory_bytes)
        _check(compiled)
        return compiled

    def _told(self, error: CompileError) -> CompileError:
        """Return the error to raise: where the compiler left nothing, it names the key and where its log is kept."""
        if not isinstance(error, NothingMade):
            return error
        failure = error.failure
        text = f"{failure.text}; its key is {self._kind}/{self._key}"
        node = self._parts.node
        kept = None if node is None else node.keep_log(self._kind, self._key, f"{text}\n\n{failure.log}")
        where = "" if kept is None else f", and its log is kept in {kept}"
        return CompileError(replace(failure, text=text + where), origin=error.origin)

    def _describe(self, compiled: Compiled) -> Entry:
        parts = self._parts
        outputs = tuple(
            Output(check_output(name), hashlib.sha256(content).hexdigest(), len(content))
            for name, content in compiled.outputs.items()
        )
        entry = Entry(
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
        return entry if parts.signer is None else parts.signer.sign(entry, compiled.outputs)

    def _share(self, entry: Entry, compiled: Compiled) -> Artifact:
        """Publish to the cluster, then to this node; return what stands there."""
        parts, neff = self._parts, compiled.neff
        if parts.cluster is not None and self._decision.publish:
            theirs = parts.cluster.instead(entry, self._publish(parts.cluster, entry, compiled))
            if theirs is not None:
                entry, neff = theirs.entry, theirs.neff
                parts.tally.add(self._kind, "bytes_down", len(neff))
        if parts.node is not None and parts.settings.mode != "off":
            stored = parts.node.put(entry, neff)
            parts.node.forget_failure(self._kind, self._key)
            if stored is not None:
                entry, neff = stored.entry, stored.neff
        return Artifact(entry, neff, "compile")

    def _publish(self, cluster: Cluster, entry: Entry, compiled: Compiled) -> Published | None:
        """Publish; None if that failed, or goes on in the background.

        Under a lease nobody else compiles, so that all will run what we load; without one we wait to hear what stands.
        """
        parts, lease = self._parts, self._decision.lease
        size = sum(map(len, compiled.outputs.values()))

        def upload(*, background: bool) -> Published | None:
            published = cluster.publish(entry, compiled.outputs, self._decision, background=background)
            if published is not None and published.created:
                parts.tally.add(self._kind, "bytes_up", size)
            return published

        if lease is not None and lease.alive and parts.settings.on_error != "fail":
            begun = parts.uploads.offer(lambda: upload(background=True), size)
            if begun is not None:
                return begun.wait(parts.upload_grace)
        return upload(background=False)

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
        raise NothingMade(Failure("transient", f"the compiler ended well but made no {MAIN_OUTPUT}", log))
    try:
        validate(neff)
    except NeffError as error:
        raise NothingMade(Failure("transient", f"the compiler ended well but made a {error}", log)) from error
