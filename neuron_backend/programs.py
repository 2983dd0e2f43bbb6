"""From a lowered module to a loaded program: key, cache, compiler, runtime.

One `Programs` per process serves the eager and the Dynamo path. Programs are held loaded, so that a second call of the
same graph or operator asks nobody.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from client.cache import Cache
from client.key import Ir, KeyDocument
from neuron_backend.compilers import get_compiler
from neuron_backend.runtimes import get_runtime

if TYPE_CHECKING:
    from client.names import Kind
    from neuron_backend.compilers.base import Compiler, Configuration
    from neuron_backend.module import Module
    from neuron_backend.runtimes.base import Executable, Runtime

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
    """The loaded programs of one process. Safe to use from several threads."""

    def __init__(self, cache: Cache, compiler: Compiler, runtime: Runtime) -> None:
        self.cache = cache
        self._compiler = compiler
        self._runtime = runtime
        self._loaded: dict[str, Executable] = {}

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
            # two threads may both have loaded it: all callers go on with the first
            loaded = self._loaded.setdefault(artifact.key, executable)
        return loaded

    def report(self) -> dict[str, Any]:
        """Return how many programs are loaded."""
        return {"loaded": len(self._loaded)}

    def close(self) -> None:
        """Flush the cache's statistics and end compiler processes."""
        self.cache.close()
        self._compiler.close()


_lock = threading.Lock()
_programs: Programs | None = None


def current() -> Programs:
    """Return this process's programs, made from the environment at first use."""
    global _programs  # noqa: PLW0603 - one per process by design
    with _lock:
        if _programs is None:
            _programs = Programs(Cache.from_environment(os.environ), get_compiler(os.environ), get_runtime(os.environ))
        return _programs


def get(kind: Kind, module: Module) -> Executable:
    """Return the loaded program of ``module`` through this process's cache; see `Programs.get`."""
    return current().get(kind, module)


def report() -> dict[str, Any]:
    """Return what this process compiled, loaded and ran on the host: programs, cache counts, fallback operators."""
    from neuron_backend.eager import get_fallback_ops  # noqa: PLC0415 - eager imports this module

    return {**current().report(), "cache": cache_stats(), "fallback_ops": get_fallback_ops()}


def cache_stats() -> dict[str, Any]:
    """Return the cache's counts in this process, with the fields of ``NEURON_CACHE_SUMMARY``."""
    return current().cache.statistics.to_json()
