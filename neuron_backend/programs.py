"""From a lowered module to a loaded program: key, cache, compiler, runtime.

One `Programs` per process serves the eager and the Dynamo path. Programs are held loaded, so that a second call of the
same graph or operator asks nobody.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from client.cache import Cache
from client.key import Ir, KeyDocument
from client.warnings import Notices
from neuron_backend import shadow
from neuron_backend.compilers import get_compiler
from neuron_backend.runtimes import get_runtime
from neuron_backend.runtimes.narrowing import as_called, warn_of_narrowing
from neuron_backend.value_checks import checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from client.names import Kind
    from neuron_backend.compilers.base import Compiler, Configuration
    from neuron_backend.lowering import NotLowered
    from neuron_backend.module import Module
    from neuron_backend.runtimes.base import Executable, Runtime
    from neuron_backend.shadow import Shadow

DIALECT = "stablehlo"
FORMAT = "vhlo"


def key_document(kind: Kind, module: Module, configuration: Configuration) -> KeyDocument:
    """Return the key document of ``module`` compiled with ``configuration``."""
    return KeyDocument(
        kind=kind,
        ir=Ir(DIALECT, FORMAT, module.version, module.sha256),
        compiler=configuration.identity,
        target=configuration.target,
        logical_cores=configuration.logical_cores,
        flags=configuration.flags,
        extra=configuration.extra,
    )


class Programs:
    """The loaded programs of one process. Safe to use from several threads.

    ``checks`` compares a share of what the cache gave with what a compiler of its own makes.
    """

    def __init__(
        self, cache: Cache, compiler: Compiler, runtime: Runtime, checks: tuple[Shadow, Compiler] | None = None
    ) -> None:
        self.cache = cache
        self._compiler = compiler
        self._runtime = runtime
        self._checks = checks
        self._loaded: dict[str, Executable] = {}

    @property
    def has_float64(self) -> bool:
        """Whether the target computes in float64."""
        return self._compiler.has_float64

    def get(self, kind: Kind, module: Module) -> Executable:
        """Return the loaded program of ``module``.

        Raises `client.errors.CompileError` if it cannot be compiled, `client.errors.NeffError` if it cannot be loaded.
        """
        configuration = self._compiler.configuration(kind)
        document = key_document(kind, module, configuration)
        # always through the cache, whose memory tier answers a repeated key: so that it counts every use
        artifact = self.cache.get_or_compile(
            document, lambda: self._compiler.compile(module.code, configuration), module_bytes=len(module.code)
        )
        loaded = self._loaded.get(artifact.key)
        if loaded is None:
            executable = self._runtime.load(artifact.neff, module.signature)
            if self._checks is not None:
                checker, compiler = self._checks

                def compile_again() -> bytes:
                    return self.cache.compile_aside(
                        document, lambda: compiler.compile(module.code, configuration), module_bytes=len(module.code)
                    ).neff

                executable = checker.watched(executable, artifact, module, compile_again)
            # two threads may both have loaded it: all callers go on with the first
            loaded = self._loaded.setdefault(artifact.key, executable)
        return as_called(loaded, module)

    def report(self) -> dict[str, Any]:
        """Return how many programs are loaded."""
        loaded: dict[str, Any] = {"loaded": len(self._loaded)}
        return loaded if self._checks is None else {**loaded, "shadow": self._checks[0].report()}

    def close(self) -> None:
        """Flush the cache's statistics and end compiler processes."""
        if self._checks is not None:
            checker, compiler = self._checks
            checker.close()
            compiler.close()
        self.cache.close()
        self._compiler.close()


class Recorder(Protocol):
    """Stands in for this process's programs while nothing is to be run: it hears what would have been asked for."""

    @property
    def has_float64(self) -> bool:
        """Whether the target of what is asked for computes in float64."""

    def get(self, kind: Kind, module: Module) -> Executable:
        """Take note of a program, and return something that has its signature."""

    def unsupported(self, error: NotLowered) -> None:
        """Take note of a graph that has no program."""


_lock = threading.Lock()
_programs: Programs | None = None
_recorder: Recorder | None = None


def current() -> Programs:
    """Return this process's programs, made from the environment at first use."""
    global _programs  # noqa: PLW0603 - one per process by design
    with _lock:
        if _programs is None:
            cache, runtime = Cache.from_environment(os.environ), get_runtime(os.environ)
            checks = _checks(cache, runtime, os.environ)
            _programs = Programs(cache, get_compiler(os.environ), runtime, checks)
        return _programs


def _checks(cache: Cache, runtime: Runtime, environ: Mapping[str, str]) -> tuple[Shadow, Compiler] | None:
    """Return what compares hits if that is asked for. Its compiler is its own: the job's never waits for it."""
    notices = Notices()
    share = shadow.fraction(environ, notices)
    if not share:
        return None
    return shadow.Shadow(share, runtime, notices=notices, heard=cache.count_shadow), get_compiler(environ)


def get(kind: Kind, module: Module) -> Executable:
    """Return the loaded program of ``module`` through this process's cache; see `Programs.get`.

    It raises the error of what its operators refuse (`neuron_backend.value_checks`).
    """
    if module.called_as is not None:
        warn_of_narrowing()
    return checked((_recorder or current()).get(kind, module), module)


def has_float64() -> bool:
    """Whether the target of this process's programs computes in float64; if not, they are lowered without."""
    return (_recorder or current()).has_float64


@contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Have ``recorder`` asked instead of this process's programs, by all threads: autograd has threads of its own.

    Raises RuntimeError if there is a recorder already.
    """
    global _recorder  # noqa: PLW0603 - see above
    with _lock:
        if _recorder is not None:
            raise RuntimeError("programs are being recorded already: one compile_only() at a time")
        _recorder = recorder
    try:
        yield
    finally:
        _recorder = None


def recording() -> bool:
    """Whether programs are recorded in place of being run, so that no tensor holds a computed value."""
    return _recorder is not None


def unsupported(error: NotLowered) -> None:
    """Say that a graph has no program, to whoever records."""
    recorder = _recorder
    if recorder is not None:
        recorder.unsupported(error)


def report() -> dict[str, Any]:
    """Return what this process compiled, loaded and ran on the host: programs, cache counts, fallback operators."""
    from neuron_backend.eager import get_fallback_ops  # noqa: PLC0415 - eager imports this module

    return {**current().report(), "cache": cache_stats(), "fallback_ops": get_fallback_ops()}


def cache_stats() -> dict[str, Any]:
    """Return the cache's counts in this process, with the fields of ``NEURON_CACHE_SUMMARY``."""
    return current().cache.statistics.to_json()
