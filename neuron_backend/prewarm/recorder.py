"""What stands in for a process's programs while they are captured: each is keyed and compiled, and none is run."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.errors import NeffCacheError
from client.pulling import SILENT
from neuron_backend import programs
from neuron_backend.module import HOLDS
from neuron_backend.prewarm.hollow import blank
from neuron_backend.prewarm.report import Program
from neuron_backend.runtimes.signature import check_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    import torch

    from client.artifact import Artifact
    from client.cache import Cache
    from client.key import KeyDocument
    from client.names import Kind
    from client.pulling import Progress
    from neuron_backend.compilers.base import Compiler
    from neuron_backend.lowering import NotLowered
    from neuron_backend.module import Module, Signature
    from neuron_backend.runtimes.base import Executable


class Unrun:
    """`neuron_backend.runtimes.base.Executable` of a program that is not run while programs are recorded.

    Functions that were compiled meanwhile hold it for good; afterwards it loads its program and runs it.
    """

    def __init__(self, kind: Kind, module: Module) -> None:
        self._kind = kind
        self._module = module
        self._loaded: Executable | None = None

    @property
    def signature(self) -> Signature:
        """What it takes and gives; see `Executable`."""
        return self._module.called_as or self._module.signature

    @property
    def direct(self) -> None:
        """Nothing: it is not to be run yet."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors without values, no check failed; see `Executable` for what it does afterwards."""
        if programs.recording():
            check_inputs(self.signature, inputs)
            outputs = [blank(spec.shape, spec.dtype) for spec in self.signature.outputs]
            if self._module.checks:
                outputs[-1].fill_(HOLDS)
            return outputs
        if self._loaded is None:
            self._loaded = programs.current().get(self._kind, self._module)
        return self._loaded(inputs)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A program that was asked for; kept until the end, should it have to be compiled for the shared cache alone."""

    document: KeyDocument
    module: Module


class Recorder:
    """`neuron_backend.programs.Recorder` that compiles, ``jobs`` programs at once, through ``cache``.

    With ``cache`` None keys are found and nothing is compiled.
    """

    def __init__(self, compiler: Compiler, cache: Cache | None, *, jobs: int, progress: Progress = SILENT) -> None:
        self._compiler = compiler
        self._cache = cache
        self._progress = progress
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="neff-cache prewarm")
        self._lock = threading.Lock()
        self._asked: dict[tuple[Kind, str], _Asked] = {}
        self._results: dict[tuple[Kind, str], Future[Program]] = {}
        self._of_bucket: list[tuple[Kind, str]] = []
        self._unsupported: list[NotLowered] = []

    @property
    def has_float64(self) -> bool:
        """Whether the target computes in float64."""
        return self._compiler.has_float64

    def get(self, kind: Kind, module: Module) -> Executable:
        """Begin to compile ``module``, unless that was begun before, and return what stands in for it."""
        configuration = self._compiler.configuration(kind)
        document = programs.key_document(kind, module, configuration)
        name = (kind, document.key)
        with self._lock:
            if name not in self._of_bucket:
                self._of_bucket.append(name)
            if name not in self._asked:
                self._asked[name] = _Asked(document, module)
                if self._cache is not None:
                    self._progress.total(1, 0)
                    self._results[name] = self._pool.submit(self._compile, self._asked[name], self._cache)
        return Unrun(kind, module)

    def unsupported(self, error: NotLowered) -> None:
        """Keep what has no program."""
        with self._lock:
            self._unsupported.append(error)

    def take(self) -> tuple[tuple[tuple[Kind, str], ...], tuple[NotLowered, ...]]:
        """Return kind and key of the programs that were asked for since the last call, and the graphs without one."""
        with self._lock:
            answer = tuple(self._of_bucket), tuple(self._unsupported)
            self._of_bucket, self._unsupported = [], []
        return answer

    def results(self) -> dict[tuple[Kind, str], Program]:
        """Wait for the compiles and return how each ended."""
        return {
            name: self._results[name].result() if name in self._results else Program(*name, where="", seconds=0.0)
            for name in self._asked
        }

    def again(self, names: Sequence[tuple[Kind, str]], cache: Cache) -> dict[tuple[Kind, str], Program]:
        """Compile programs once more, through another cache object, and return how each ended."""
        futures = {name: self._pool.submit(self._compile, self._asked[name], cache) for name in names}
        return {name: future.result() for name, future in futures.items()}

    def close(self) -> None:
        """Give up what was not begun, and wait for what was."""
        self._pool.shutdown(cancel_futures=True)

    def _compile(self, asked: _Asked, cache: Cache) -> Program:
        document, module = asked.document, asked.module
        configuration = self._compiler.configuration(document.kind)
        began = time.monotonic()
        try:
            artifact = cache.get_or_compile(
                document, lambda: self._compiler.compile(module.code, configuration), module_bytes=len(module.code)
            )
        except NeffCacheError as error:
            return Program(document.kind, document.key, "", time.monotonic() - began, error=str(error))
        finally:
            self._progress.done(1, 0)
        return Program(
            document.kind, document.key, _where(artifact), time.monotonic() - began, artifact.entry.compile_seconds
        )


def _where(artifact: Artifact) -> str:
    return "compiled" if artifact.source == "compile" else artifact.source
