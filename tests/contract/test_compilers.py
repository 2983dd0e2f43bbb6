"""What every compiler owes the cache, run against XLA itself and against a program that behaves as neuronx-cc."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from client import neff
from client.errors import CompileError, ConfigurationError, NeffError
from client.names import Kind
from neuron_backend.compilers import get_compiler
from tests.fakes.modules import ADD, binary
from tests.fakes.programs import FakeCompiler, install_neuronx_cc
from tests.fakes.waiting import HANG_SECONDS, children, is_running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from neuron_backend.compilers.base import Compiler

WORKER = "neuron_backend.compilers.xla_worker"


class Subject:
    """A compiler under test, and how to make it hang or die in the middle of a compile."""

    def __init__(self, name: str, fake: FakeCompiler, temporary: Path) -> None:
        self.name = name
        self.fake = fake
        self.temporary = temporary
        self.environ = {
            **os.environ,
            "PATH": f"{fake.directory}:{os.environ['PATH']}",
            "NEURON_BACKEND_COMPILER": name,
            "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
            "NEURON_CACHE_COMPILE_SLOTS": "2",
        }
        self.made: list[Any] = []

    def make(self, **environ: str) -> Compiler:
        compiler = get_compiler({**self.environ, **environ})
        self.made.append(compiler)
        return compiler

    def processes(self) -> list[int]:
        """Return the processes that compile now, or are kept to."""
        if self.name == "cpu":
            return children(WORKER, os.getpid(), below=str(self.temporary))
        pids = [call["pid"] for call in self.fake.calls if call["arguments"] != ["--version"]]
        if (self.fake.directory / "grandchild.pid").exists():
            pids.append(self.fake.grandchild)
        return [pid for pid in pids if is_running(pid)]

    def busy(self) -> bool:
        """Whether a compile is under way: a worker was taken, or the program started its own."""
        if self.name == "cpu":
            return all(not compiler._pool._idle for compiler in self.made)
        return len(self.processes()) == 2

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Have compiles that begin now never end."""
        self.fake.set_mode("slow")
        stopped = self.processes() if self.name == "cpu" else []
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        yield
        self.fake.set_mode("ok")

    def kill_one(self) -> None:
        """SIGKILL the process that compiles."""
        os.kill(self.processes()[0], signal.SIGKILL)


@pytest.fixture(params=["cpu", "neuronx-cc"])
def subject(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    subject = Subject(request.param, install_neuronx_cc(tmp_path / "bin"), temporary)
    yield subject
    for compiler in subject.made:
        compiler.close()
    assert subject.processes() == []
    assert list(temporary.iterdir()) == []


def compile_in_thread(compiler: Compiler, configuration: Any) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            compiler.compile(ADD, configuration)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


@pytest.mark.parametrize("kind", [Kind.EAGER, Kind.GRAPH])
def test_a_compile_gives_a_whole_neff_its_log_and_the_very_bytes_it_was_given(subject: Subject, kind: Kind) -> None:
    compiler = subject.make()
    configuration = compiler.configuration(kind)
    compiled = compiler.compile(ADD, configuration)
    assert set(compiled.outputs) == {"model.neff", "compile.log", "module.mlirbc"}
    assert neff.validate(compiled.neff).logical_cores == configuration.logical_cores
    assert compiled.outputs["module.mlirbc"] == ADD
    log = compiled.outputs["compile.log"].decode()
    assert hashlib.sha256(ADD).hexdigest() in log
    assert configuration.identity.version in log
    assert compiled.seconds > 0
    assert compiled.peak_memory_bytes is not None
    assert 1 << 20 < compiled.peak_memory_bytes < 1 << 32


def test_two_builds_differ_so_that_nothing_may_be_addressed_by_what_came_out(subject: Subject) -> None:
    compiler = subject.make()
    configuration = compiler.configuration(Kind.GRAPH)
    first, second = (neff.read_header(compiler.compile(ADD, configuration).neff) for _ in range(2))
    assert first.uuid != second.uuid


def test_ranks_whose_environments_differ_ask_for_one_entry(subject: Subject) -> None:
    ranks = [
        subject.make(
            NEURON_RT_VISIBLE_CORES=rank,
            NEURON_RT_ROOT_COMM_ID=f"10.0.0.{rank}:41000",
            NEURON_PJRT_PROCESS_INDEX=rank,
            NEURON_CC_FLAGS=f"--model-type transformer --workdir /scratch/{rank} --cache_dir=/c/{rank}",
            NEURON_CACHE_LABEL=rank,
            HOME=f"/home/{rank}",
            RANK=rank,
        ).configuration(Kind.GRAPH)
        for rank in ("0", "7")
    ]
    assert ranks[0] == ranks[1]


def test_bytes_that_are_no_module_are_a_diagnosis_and_the_next_compile_works(subject: Subject) -> None:
    compiler = subject.make()
    configuration = compiler.configuration(Kind.EAGER)
    for damaged in (b"", b"no module", ADD[:-9]):
        with pytest.raises(CompileError) as caught:
            compiler.compile(damaged, configuration)
        assert caught.value.failure.failure_class == "diagnosis"
        assert caught.value.failure.text
    compiler.compile(ADD, configuration)


def test_threads_compile_at_once_and_each_gets_its_own_module(subject: Subject) -> None:
    compiler = subject.make()
    configuration = compiler.configuration(Kind.EAGER)
    modules = [binary("add", f"tensor<{size}xf32>") for size in range(1, 9)]
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda code: compiler.compile(code, configuration), modules))
    assert [compiled.outputs["module.mlirbc"] for compiled in made] == modules
    digests = [hashlib.sha256(code).hexdigest() for code in modules]
    logs = [compiled.outputs["compile.log"].decode() for compiled in made]
    assert all(digest in log for digest, log in zip(digests, logs, strict=True))


def test_a_compiler_that_is_killed_is_a_passing_failure_and_the_next_compile_works(subject: Subject) -> None:
    compiler = subject.make()
    configuration = compiler.configuration(Kind.EAGER)
    with subject.hanging():
        thread, errors = compile_in_thread(compiler, configuration)
        wait_until(subject.busy, "the compile runs")
        subject.kill_one()
        thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    [error] = errors
    assert isinstance(error, CompileError)
    assert error.failure.failure_class == "resource"
    assert "killed by" in error.failure.text
    compiler.compile(ADD, configuration)


def test_a_compile_over_its_time_limit_is_stopped_wholly(subject: Subject) -> None:
    compiler = subject.make(NEURON_CACHE_COMPILE_LIMIT="10")
    configuration = compiler.configuration(Kind.EAGER)
    compiler.compile(ADD, configuration)
    with subject.hanging():
        before = subject.processes()
        with pytest.raises(CompileError) as caught:
            compiler.compile(ADD, configuration)
        assert [pid for pid in subject.processes() if pid in before] == []
    assert caught.value.failure.failure_class == "resource"
    assert "NEURON_CACHE_COMPILE_LIMIT" in caught.value.failure.text
    compiler.compile(ADD, configuration)


def test_ctrl_c_leaves_nothing_running_and_the_next_compile_works(subject: Subject) -> None:
    compiler = subject.make()
    configuration = compiler.configuration(Kind.EAGER)

    def interrupt() -> None:
        wait_until(subject.busy, "the compile runs")
        os.kill(os.getpid(), signal.SIGINT)

    with subject.hanging():
        before = subject.processes()
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            compiler.compile(ADD, configuration)
        thread.join()
        assert [pid for pid in subject.processes() if subject.name != "cpu" or pid in before] == []
    compiler.compile(ADD, configuration)


def test_a_closed_compiler_keeps_no_process_and_may_be_used_again(subject: Subject) -> None:
    compiler = subject.make()
    configuration = compiler.configuration(Kind.EAGER)
    compiler.compile(ADD, configuration)
    compiler.close()
    assert subject.processes() == []
    compiler.compile(ADD, configuration)


def test_a_setting_that_means_nothing_is_named(subject: Subject) -> None:
    with pytest.raises(ConfigurationError, match="NEURON_BACKEND_COMPILER='gcc'"):
        get_compiler({**subject.environ, "NEURON_BACKEND_COMPILER": "gcc"})


def test_the_validator_catches_every_cut_of_a_neff(subject: Subject) -> None:
    compiler = subject.make()
    made = compiler.compile(ADD, compiler.configuration(Kind.EAGER)).neff
    for size in (0, 1, 500, 1023, 1024, 1025, len(made) // 2, len(made) - 1):
        with pytest.raises(NeffError):
            neff.validate(made[:size])
