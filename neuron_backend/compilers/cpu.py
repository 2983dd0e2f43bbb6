"""The stand-in compiler: XLA compiles the same StableHLO for the host's CPU, in worker processes.

It is a real compiler with a real cost and real failures, so that everything from capture to numerics works, and is
tested, on a machine without a Neuron device. Its worker parses the portable artifact itself: exactly the bytes that
were hashed are what is compiled.
"""

from __future__ import annotations

import hashlib
import os
import signal
from typing import TYPE_CHECKING, Final

from client.artifact import Compiled
from client.environment import schedulable_cpus, scrubbed, xla_flags_without_dumps
from client.errors import CompileError, ConfigurationError, Failure
from client.key import CompilerIdentity
from client.names import COMPILE_LOG, MAIN_OUTPUT
from client.settings import Settings
from neuron_backend.compilers.base import MODULE_OUTPUT, Configuration
from neuron_backend.compilers.worker_pool import Answer, Overtime, Worker, WorkerDied, WorkerPool
from neuron_backend.runtimes.cpu_artifact import Info, pack
from neuron_backend.runtimes.xla_client import jaxlib_version, thread_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client.names import Kind

NAME: Final = "xla-cpu"
IDLE_SECONDS: Final = 60.0

_WORKER = "neuron_backend.compilers.xla_worker"
# A stand-in compile lasts well below a second, a worker takes 170 MB: more of them would not help.
_MOST_WORKERS = 8
# The first answer of a worker: it imports jaxlib and compiles a trivial program, in 0.4 s on an idle machine.
_IDENTIFY_SECONDS = 120


class CpuCompiler:
    """`neuron_backend.compilers.base.Compiler` for the host's CPU.

    ``environ`` is read once, here. At most ``NEURON_CACHE_COMPILE_SLOTS`` workers (default: the CPUs this process may
    run on, at most 8) are started, when they are needed, and end after ``idle_seconds`` without work. ``random`` gives
    the bytes of each artifact's UUID.
    """

    has_float64 = True

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        idle_seconds: float = IDLE_SECONDS,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._environ = dict(environ)
        self._idle_seconds = idle_seconds
        self._random = random
        settings = Settings.from_environment(environ)
        self._limit = settings.compile_limit
        slots = settings.compile_slots or min(schedulable_cpus(), _MOST_WORKERS)
        self._threads = thread_count(environ)
        self._xla_flags = xla_flags_without_dumps(environ)
        self._pool = WorkerPool(self._start_worker, slots=slots)
        self._configuration: Configuration | None = None

    def _start_worker(self) -> Worker:
        arguments = (str(self._threads), str(self._idle_seconds))
        return Worker(_WORKER, arguments, self._worker_environment)

    def _worker_environment(self, directory: str) -> dict[str, str]:
        extra = {"NPROC": str(self._threads)}
        return scrubbed(self._environ, home=directory, tmpdir=directory, extra=extra)

    def configuration(self, kind: Kind) -> Configuration:  # noqa: ARG002 - the same for every kind
        """Return what modules are compiled with.

        The target is asked of a worker, once: so XLA is not started in this process, which may still have to fork.
        """
        return self._own_configuration()

    def _own_configuration(self) -> Configuration:
        # No lock, which a fork could copy locked: two threads that come first both ask, and hear the same.
        if self._configuration is None:
            self._configuration = self._identify()
        return self._configuration

    def _identify(self) -> Configuration:
        jaxlib_version()  # says what is wrong before a worker is started in vain
        try:
            answer = self._pool.request({"do": "identify"}, seconds=_IDENTIFY_SECONDS)
        except WorkerDied as error:
            flags = f" (XLA_FLAGS={self._xla_flags!r})" if self._xla_flags else ""
            raise ConfigurationError(
                f"XLA's CPU compiler does not start{flags}: its process {_ending(error.returncode)}\n{error.log}"
            ) from error
        except Overtime as error:
            raise ConfigurationError(
                f"XLA's CPU compiler does not start: no answer within {_IDENTIFY_SECONDS} s\n{error.log}"
            ) from error
        if not answer.header["ok"]:
            raise ConfigurationError(answer.header["text"])
        return Configuration(
            identity=CompilerIdentity(NAME, f"jaxlib-{answer.header['version']}"),
            target=answer.header["target"],
            logical_cores=self._threads,
            extra={"xla_flags": self._xla_flags},
        )

    def compile(self, code: bytes, configuration: Configuration) -> Compiled:
        """Compile a VHLO portable artifact in a worker; the outputs are the NEFF, the log and ``code`` itself.

        Raises `CompileError`: ``diagnosis`` where XLA refuses the module, ``resource`` where a worker was killed (by
        the kernel for want of memory, most often) or took longer than ``NEURON_CACHE_COMPILE_LIMIT`` seconds.
        """
        self._check(configuration)
        try:
            answer = self._pool.request({"do": "compile"}, code, seconds=self._limit)
        except WorkerDied as error:
            raise CompileError(_death(error)) from error
        except Overtime as error:
            text = f"XLA's CPU compiler was stopped: it took longer than {self._limit:g} s (NEURON_CACHE_COMPILE_LIMIT)"
            raise CompileError(Failure("resource", text, error.log)) from error
        if not answer.header["ok"]:
            if answer.header["class"] == "configuration":
                raise ConfigurationError(answer.header["text"])
            raise CompileError(Failure(answer.header["class"], answer.header["text"], answer.log))
        info = Info(configuration.identity.version.removeprefix("jaxlib-"), configuration.target, self._threads)
        return Compiled(
            outputs={
                MAIN_OUTPUT: pack(answer.body, info, uuid=self._random(16)),
                COMPILE_LOG: self._log(code, configuration, answer).encode(),
                MODULE_OUTPUT: code,
            },
            seconds=answer.header["seconds"],
            peak_memory_bytes=answer.header["peak_memory_bytes"],
        )

    def _check(self, configuration: Configuration) -> None:
        """Refuse to compile with anything else than what the key says."""
        ours = self._own_configuration()
        if configuration != ours:
            raise ConfigurationError(
                f"the CPU stand-in was asked to compile with {configuration}, but here it is {ours}: "
                "compile with the configuration that it gives"
            )

    def _log(self, code: bytes, configuration: Configuration, answer: Answer) -> str:
        peak = answer.header["peak_memory_bytes"]
        memory = "unknown" if peak is None else f"{peak >> 20} MiB"
        return (
            f"{NAME} {configuration.identity.version}, CPU stand-in\n"
            f"module sha256 {hashlib.sha256(code).hexdigest()}, {len(code)} bytes\n"
            f"target {configuration.target}, threads {self._threads}, XLA_FLAGS {self._xla_flags!r}\n"
            f"executable {len(answer.body)} bytes, compiled in {answer.header['seconds']:.3f} s, peak memory {memory}\n"
            f"{answer.log}"
        )

    def close(self) -> None:
        """End the worker processes; the compiler may be used again afterwards."""
        self._pool.close()


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was killed by {name}"


def _death(error: WorkerDied) -> Failure:
    text = f"XLA's CPU compiler gave no result: its process {_ending(error.returncode)} while it compiled"
    if error.returncode >= 0:
        return Failure("transient", text, error.log)
    return Failure("resource", f"{text}; the kernel does so when memory runs out", error.log)
