"""The real compiler: starts the program ``neuronx-cc`` on a private copy of the module and reads one NEFF back."""

from __future__ import annotations

import hashlib
import os
import tempfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from client import failures, processes
from client.artifact import Compiled
from client.compiler_path import NAME, find_compiler
from client.compiler_path import SETTING as PROGRAM
from client.environment import (
    LOGICAL_CORES,
    TARGET,
    compiler_words,
    resolve_logical_cores,
    resolve_target,
    scrubbed,
)
from client.errors import CompileError, ConfigurationError, Failure
from client.key import UNKEYED_WORDS, CompilerIdentity, keyed_flags, normalise_compiler_version
from client.names import COMPILE_LOG, MAIN_OUTPUT, Kind
from client.settings import Settings
from neuron_backend.compilers.base import MODULE_OUTPUT, Configuration
from neuron_backend.compilers.stablehlo import to_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Eager programs are many, small and compiled while somebody waits; graphs are few and run for hours.
OPTIMIZATION: Final[Mapping[Kind, str]] = {Kind.EAGER: "-O1", Kind.GRAPH: "-O2"}

_VERSION_SECONDS = 120
_OWN_LOG = "log-neuron-cc.txt"

_Stamp = tuple[str, int, int, int]


class NeuronxCc:
    """`neuron_backend.compilers.base.Compiler` that runs ``neuronx-cc``; ``environ`` is read once, here.

    The command line is made of the configuration and nothing else that could change the NEFF, so the key says all of
    it. ``root`` is where this host's instance type is looked up.
    """

    has_float64 = False  # no NeuronCore has such an engine

    def __init__(self, environ: Mapping[str, str] = os.environ, *, root: Path = Path("/")) -> None:
        self._environ = dict(environ)
        self._root = root
        self._limit = Settings.from_environment(environ).compile_limit
        self._versions: dict[_Stamp, CompilerIdentity] = {}

    def configuration(self, kind: Kind) -> Configuration:
        """Return what modules of ``kind`` are compiled with.

        Raises `ConfigurationError` if there is no compiler, no target, or ``kind`` is none that our backends compile.
        """
        if kind not in OPTIMIZATION:
            raise ConfigurationError(f"modules of kind {kind} are not compiled here: expected eager or graph")
        identity = self._identify(self._program())
        target = resolve_target(self._environ, root=self._root)
        return Configuration(
            identity=identity,
            target=target,
            logical_cores=resolve_logical_cores(self._environ, target),
            flags=(OPTIMIZATION[kind], *keyed_flags(compiler_words(self._environ))),
        )

    def _program(self) -> str:
        program = find_compiler(self._environ)
        if program is None:
            wanted = self._environ.get(PROGRAM, "").strip()
            looked = f"{PROGRAM}={wanted!r} is no program" if wanted else f"no {NAME} on PATH"
            raise ConfigurationError(
                f"no Neuron compiler: {looked}; install the Neuron SDK, set {PROGRAM} to its {NAME}, "
                "or set NEURON_BACKEND_COMPILER=cpu for the stand-in"
            )
        return program

    def _identify(self, program: str) -> CompilerIdentity:
        """Return the program's exact version, asked once as long as the file stays the same one."""
        status = Path(program).stat()
        stamp = (program, status.st_size, status.st_mtime_ns, status.st_ino)
        # No lock, which a fork could copy locked: two threads that come first both ask, and hear the same.
        if stamp not in self._versions:
            self._versions[stamp] = CompilerIdentity(NAME, self._ask_version(program))
        return self._versions[stamp]

    def _ask_version(self, program: str) -> str:
        with tempfile.TemporaryDirectory(prefix="neff-cache-cc-", ignore_cleanup_errors=True) as private:
            directory = Path(private)
            log = directory / "version.log"  # both streams: releases differ in which one they use
            environ = scrubbed(self._environ, home=private, tmpdir=private)
            try:
                ended = processes.run(
                    [program, "--version"], environ=environ, directory=directory, log=log, seconds=_VERSION_SECONDS
                )
            except OSError as error:
                raise ConfigurationError(f"{program} cannot be started ({error.strerror}): set {PROGRAM}") from error
            if ended.returncode is None:
                raise ConfigurationError(f"`{program} --version` gave no answer within {_VERSION_SECONDS} s")
            return normalise_compiler_version(failures.read_tail(log))

    def compile(self, code: bytes, configuration: Configuration) -> Compiled:
        """Compile a VHLO portable artifact; the outputs are the validated NEFF, the log and ``code`` itself.

        Raises `CompileError`, ``resource`` also after ``NEURON_CACHE_COMPILE_LIMIT`` seconds. Neither a process nor a
        file is left, also when interrupted.
        """
        program = self._program()
        if self._identify(program) != configuration.identity:
            text = f"{program} is no longer {configuration.identity.version}: it was replaced while the job ran"
            raise CompileError(Failure("transient", text))
        try:
            text = to_text(code)
        except ValueError as error:
            raise CompileError(Failure("diagnosis", f"the module is no portable artifact: {error}")) from error
        with tempfile.TemporaryDirectory(prefix="neff-cache-cc-", ignore_cleanup_errors=True) as private:
            return self._compile_in(Path(private), program, text, code, configuration)

    def _compile_in(self, root: Path, program: str, text: str, code: bytes, configuration: Configuration) -> Compiled:
        home, tmpdir, work = root / "home", root / "tmp", root / "work"
        module, output, log = work / "module.mlir", root / "model.neff", root / "compile.log"
        try:
            for directory in (home, tmpdir, work):
                directory.mkdir()
            module.write_text(text)
            command = [program, *self._arguments(module, output, configuration)]
            ended = processes.run(
                command,
                environ=self._compile_environment(home, tmpdir, configuration),
                directory=root,
                log=log,
                seconds=self._limit,
            )
        except OSError as error:
            raise CompileError(failures.failure_to_start(error)) from error
        said = failures.read_tail(log)
        if ended.returncode is None:
            raise CompileError(failures.stopped(self._limit, said))
        if ended.returncode != 0:
            raise CompileError(failures.failure_of(ended.returncode, said))
        return Compiled(
            outputs={
                MAIN_OUTPUT: failures.read_neff(output, said + _own_log(output, root), _described(code), command),
                COMPILE_LOG: (_preamble(code, configuration, ended) + said).encode(),
                MODULE_OUTPUT: code,
            },
            seconds=ended.seconds,
            peak_memory_bytes=ended.peak_memory_bytes,
        )

    def _arguments(self, module: Path, output: Path, configuration: Configuration) -> list[str]:
        """Return the words after the program; where options compete the right-most wins, so the user's come last."""
        arguments = ["compile", str(module), "--framework", "XLA", "--target", configuration.target]
        arguments += ["--lnc", str(configuration.logical_cores), *configuration.flags]
        return [*arguments, *_log_words(compiler_words(self._environ)), "--output", str(output)]

    def _compile_environment(self, home: Path, tmpdir: Path, configuration: Configuration) -> dict[str, str]:
        """Return the scrubbed environment, its first row as resolved: what the key says is what the compiler sees."""
        resolved = {TARGET: configuration.target, **dict.fromkeys(LOGICAL_CORES, str(configuration.logical_cores))}
        return scrubbed(self._environ, home=str(home), tmpdir=str(tmpdir), extra=resolved)

    def close(self) -> None:
        """Nothing runs between compiles."""


def _log_words(words: Sequence[str]) -> list[str]:
    """Return the user's words about logs, which change no code and so stand in no key; the output's name is ours."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in UNKEYED_WORDS:
            continue
        value = list(islice(rest, 1)) if UNKEYED_WORDS[name] and not equals else []
        if name not in ("--output", "-o"):
            kept += [word, *value]
    return kept


def _own_log(output: Path, work: Path) -> str:
    """Return the log that the compiler keeps of its own in ``work``, if it left no output to speak for it."""
    return "" if output.exists() else failures.read_tail(work / _OWN_LOG)


def _described(code: bytes) -> str:
    return f"module sha256 {hashlib.sha256(code).hexdigest()}, {len(code)} bytes"


def _preamble(code: bytes, configuration: Configuration, ended: processes.Completed) -> str:
    peak = "unknown" if ended.peak_memory_bytes is None else f"{ended.peak_memory_bytes >> 20} MiB"
    return (
        f"{NAME} {configuration.identity.version}\n"
        f"{_described(code)}\n"
        f"target {configuration.target}, logical cores {configuration.logical_cores}, "
        f"flags {' '.join(configuration.flags)}\n"
        f"compiled in {ended.seconds:.3f} s, peak memory of one process {peak}\n"
    )
