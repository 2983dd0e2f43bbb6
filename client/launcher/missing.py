"""What is not on this node's disk: the client proper finds it, waits for it, or runs the real compiler."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from client import failures, neff, processes
from client.artifact import Compiled
from client.cache import Cache
from client.cleaning import clean
from client.environment import unlisted_names
from client.errors import CompileError, Failure, NeffCacheError, NeffError
from client.key import CompilerIdentity, Ir, KeyDocument
from client.launcher import delivery, passing, streams
from client.launcher.interrupts import Interrupted, die_of, raise_on_signals
from client.launcher.passing import FAILED, NotShared
from client.names import COMPILE_LOG, MAIN_OUTPUT, Kind
from client.settings import LIMIT, Settings
from client.warnings import LOGGER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from client.artifact import Artifact
    from client.launcher.plan import Plan

# How a module is called among an entry's outputs, by its encoding.
MODULE_OUTPUTS = {
    "mlir-text": "module.mlir",
    "mlir-bytecode": "module.mlirbc",
    "hlo-protobuf": "module.hlo.pb",
    "bytes": "module.bin",
}
KERNEL_OUTPUT = "kernel-"
_SOURCES = {"disk": "this node's disk", "remote": "the shared cache", "memory": "another process"}


class _Unusable(Exception):  # noqa: N818 - never leaves this module
    """The compiler ended well, but what it made cannot be shared; ``made`` is it."""

    def __init__(self, why: str, made: bytes) -> None:
        super().__init__(why)
        self.made = made


def _without_notice(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``environ`` with signatures turned off in so many words, if nothing there speaks of them."""
    asked = any(environ.get(f"NEURON_CACHE_{name}", "").strip() for name in ("SIGNATURES", "TRUSTED_KEYS"))
    return environ if asked else {**environ, "NEURON_CACHE_SIGNATURES": "off"}


class Run:
    """One run of the real compiler: how it ended and what it said."""

    __slots__ = ("ended", "errors", "output")

    def __init__(self, ended: processes.Completed, output: bytes, errors: bytes) -> None:
        self.ended = ended
        self.output = output
        self.errors = errors

    @property
    def said(self) -> str:
        """Both streams as one log."""
        return (self.output + self.errors)[-failures.LOG_LIMIT :].decode("utf-8", "replace")


class Miss:
    """One request that the node's disk did not answer. For the main thread."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._last: Run | None = None
        self._limit = LIMIT

    def run(self) -> NoReturn:
        """Deliver the program or the failure, and end the process; raises `NotShared` before anything was delivered."""
        gc.enable()
        streams.hold()
        raise_on_signals()
        LOGGER.addHandler(streams.Notices())
        LOGGER.propagate = False
        try:
            status = self._deliver()
        except Interrupted as interrupted:
            die_of(interrupted.number)
        except NeffCacheError as error:  # must hit, and does not; or NEURON_CACHE_ON_ERROR=fail
            streams.close_output()
            streams.write(2, f"{passing.PREFIX}{error}\n".encode("utf-8", "replace"))
            status = FAILED
        if status < 0:
            die_of(-status)
        os._exit(status)

    def _deliver(self) -> int:
        """Return the exit status, negative for a signal."""
        request = self._plan.request
        self._limit = Settings.from_environment(self._plan.environ).compile_limit
        # this is one process of very many: one notice for a job is enough, and all it does is wait for its compiler
        cache = Cache.from_environment(_without_notice(self._plan.environ), busy=False)
        try:
            artifact = cache.get_or_compile(
                self._document(),
                self._compile,
                retry_failed=request.retry_failed,
                module_bytes=len(self._plan.module.content),
            )
        except CompileError as error:
            return self._fail(error)
        except _Unusable as error:
            LOGGER.warning("not shared: %s", error)
            delivery.write(request.output, error.made)
            self._replay()
            return 0
        finally:
            cache.close()
        delivery.write(request.output, artifact.neff)
        if self._last is None:
            self._tell_where_from(artifact)
        self._replay()
        return 0

    def _document(self) -> KeyDocument:
        """Return the plan's document as the client's own; the two must make one key."""
        plan, value = self._plan, self._plan.document
        document = KeyDocument(
            kind=Kind.CC,
            ir=Ir(**value["ir"]),
            compiler=CompilerIdentity(**value["compiler"]),
            target=value["target"],
            logical_cores=value["logical_cores"],
            flags=tuple(value["flags"]),
            kernels=tuple(value["kernels"]),
            extra=value["extra"],
        )
        if document.key != plan.key:
            raise NotShared("the key is not that of its document")
        return document

    def _compile(self) -> Compiled:
        """Run the real compiler on a private copy of exactly the bytes that were hashed."""
        plan = self._plan
        unlisted = unlisted_names(plan.environ)
        if unlisted:
            LOGGER.warning(
                "these variables are part of the key, because a compiler may read them: %s", ", ".join(unlisted)
            )
        with tempfile.TemporaryDirectory(prefix="neff-cache-cc-", ignore_cleanup_errors=True) as private:
            run, output = self._run_in(Path(private))
            made = self._check(run, output)
        if not all(kernel.is_unchanged() for kernel in plan.module.kernels):
            raise NotShared("an NKI kernel's file changed while it was compiled")
        return Compiled(self._outputs(run, made), run.ended.seconds, run.ended.peak_memory_bytes)

    def _run_in(self, root: Path) -> tuple[Run, Path]:
        """Run in the caller's working directory, where the compiler leaves and looks for what belongs to it."""
        plan = self._plan
        # the names stay: a compiler may derive others from them
        source = root / "in" / (Path(plan.request.source).name or "module")
        output = root / "out" / (Path(plan.request.output).name or MAIN_OUTPUT)
        logs = root / "stdout", root / "stderr"
        try:
            source.parent.mkdir()
            output.parent.mkdir()
            source.write_bytes(plan.module.content)
            ended = processes.run(
                [plan.program, *plan.request.command(str(source), str(output))],
                environ=passing.compiler_environment(plan.environ),
                directory=root,
                work=Path.cwd(),
                log=logs[0],
                errors=logs[1],
                seconds=self._limit,
            )
            self._last = Run(ended, *(log.read_bytes() for log in logs))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise NotShared("a name that is too long for the folder of temporary files") from error
            raise CompileError(failures.failure_to_start(error)) from error
        return self._last, output

    def _check(self, run: Run, output: Path) -> bytes:
        """Return the NEFF; raises `CompileError`, or `_Unusable` for a file that is none."""
        code = run.ended.returncode
        if code is None:
            raise CompileError(failures.stopped(self._limit, run.said))
        if code != 0:
            raise CompileError(failures.failure_of(code, run.said))
        with suppress(OSError):
            made = output.read_bytes()
            try:
                neff.read_header(made)
            except NeffError as error:
                if made:
                    raise _Unusable(f"the compiler's output is {error}", made) from error
        plan = self._plan
        module = f"{plan.request.source} (sha256 {plan.document['ir']['sha256']}, {len(plan.module.content)} bytes)"
        return failures.read_neff(output, run.said, module, [plan.program, *plan.request.words])

    def _outputs(self, run: Run, made: bytes) -> dict[str, bytes]:
        module = self._plan.module
        kernels = {f"{KERNEL_OUTPUT}{kernel.sha256[:32]}": kernel.content for kernel in module.kernels}
        log = self._preamble(run) + run.said
        return {
            MAIN_OUTPUT: made,
            COMPILE_LOG: log.encode(),
            MODULE_OUTPUTS[module.encoding]: module.content,
            **kernels,
        }

    def _preamble(self, run: Run) -> str:
        document = self._plan.document
        peak = run.ended.peak_memory_bytes
        return (
            f"{document['compiler']['name']} {document['compiler']['version']}, through the launcher\n"
            f"{document['ir']['format']} sha256 {document['ir']['sha256']}, {len(self._plan.module.content)} bytes\n"
            f"target {document['target']}, logical cores {document['logical_cores']}, "
            f"flags {' '.join(document['flags'])}\n"
            f"compiled in {run.ended.seconds:.3f} s, peak memory of one process "
            f"{'unknown' if peak is None else f'{peak >> 20} MiB'}\n"
        )

    def _fail(self, error: CompileError) -> int:
        """Hand on the compiler's failure: our own run's as it was, another's as what it is."""
        run = self._last
        if run is not None:
            self._replay()
            code = run.ended.returncode
            if code:
                return code
        failure: Failure = error.failure
        where = "" if error.origin is None else f" (compiled on {error.origin}; not compiled again here)"
        # another host's log, and what others wrote into it
        log = "" if run is not None else clean(failure.log)
        streams.close_output()
        streams.write(
            2, f"{log}\n{passing.PREFIX}{clean(failure.text + where)}\n".lstrip("\n").encode("utf-8", "replace")
        )
        return FAILED

    def _replay(self) -> None:
        if self._last is not None:
            streams.replay(self._last.output, self._last.errors)

    def _tell_where_from(self, artifact: Artifact) -> None:
        entry = artifact.entry.without_document().to_json()
        delivery.write_log(self._plan.request.logfile, entry, _SOURCES[artifact.source])
