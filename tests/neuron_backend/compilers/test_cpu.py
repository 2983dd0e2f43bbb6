from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from client.environment import schedulable_cpus
from client.errors import CompileError, ConfigurationError
from client.names import Kind
from neuron_backend.compilers.cpu import CpuCompiler
from neuron_backend.compilers.worker_pool import Worker
from tests.fakes.modules import ADD, REFUSED
from tests.fakes.waiting import HANG_SECONDS, children, is_running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKER = "neuron_backend.compilers.xla_worker"


def environ(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")}
    return {**kept, "NEURON_CACHE_COMPILE_SLOTS": "2", **variables}


@pytest.fixture
def make() -> Iterator[Callable[..., CpuCompiler]]:
    made: list[CpuCompiler] = []

    def make(idle_seconds: float = 60, **variables: str) -> CpuCompiler:
        made.append(CpuCompiler(environ(**variables), idle_seconds=idle_seconds))
        return made[-1]

    yield make
    for compiler in made:
        compiler.close()


def run_script(script: str, *arguments: str, **variables: str) -> Any:
    """Run a script in a fresh process and return the JSON it prints."""
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    ended = subprocess.run(
        command, env=environ(**variables), capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


IDENTIFY = (
    "import json, sys\n"
    "from dataclasses import asdict\n"
    "from client.names import Kind\n"
    "from neuron_backend.compilers.cpu import CpuCompiler\n"
    "configuration = CpuCompiler().configuration(Kind.EAGER)\n"
    "assert 'jaxlib' not in sys.modules and 'torch' not in sys.modules\n"
    "print(json.dumps(asdict(configuration)))\n"
)


def test_every_process_of_a_host_asks_for_the_same_entry_and_loads_no_xla_to_know() -> None:
    found = [
        run_script(IDENTIFY, PYTHONHASHSEED=seed, NPROC=nproc, XLA_FLAGS=f"--xla_dump_to=/dump/{seed}")
        for seed, nproc in (("0", "1"), ("1", "2"), ("7", "64"))
    ]
    assert found[0] == found[1] == found[2]
    assert found[0]["identity"]["name"] == "xla-cpu"
    assert re.fullmatch(r"jaxlib-[0-9.]+", found[0]["identity"]["version"])
    assert re.fullmatch(r"cpu:[0-9A-Za-z._-]+:[0-9a-f]{64}", found[0]["target"])
    assert found[0]["logical_cores"] == 1
    assert found[0]["extra"] == {"xla_flags": ""}


def test_flags_that_change_the_machine_code_change_the_key(make) -> None:
    plain = make().configuration(Kind.EAGER)
    narrow = make(XLA_FLAGS="--xla_cpu_max_isa=SSE4_2 --xla_dump_to=/x").configuration(Kind.EAGER)
    assert narrow.extra == {"xla_flags": "--xla_cpu_max_isa=SSE4_2"}
    assert narrow.target != plain.target


@pytest.mark.skipif(schedulable_cpus() < 2, reason="needs two CPUs")
def test_the_thread_count_is_part_of_the_key_and_never_taken_from_the_host(make) -> None:
    assert make().configuration(Kind.EAGER).logical_cores == 1
    assert make(NEURON_BACKEND_CPU_THREADS="2").configuration(Kind.EAGER).logical_cores == 2


def test_more_threads_than_cpus_are_refused_because_xla_would_split_for_fewer(make) -> None:
    with pytest.raises(ConfigurationError, match=r"NEURON_BACKEND_CPU_THREADS=100000 .* at most that"):
        make(NEURON_BACKEND_CPU_THREADS="100000")


def test_flags_that_xla_does_not_know_are_named_with_what_xla_says(make) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(XLA_FLAGS="--no_such_flag=1").configuration(Kind.EAGER)
    assert "XLA_FLAGS='--no_such_flag=1'" in str(caught.value)
    assert "Unknown flag" in str(caught.value)


def test_a_module_that_xla_refuses_is_a_diagnosis_in_xlas_own_words(make) -> None:
    compiler = make()
    with pytest.raises(CompileError, match="no_such_target") as caught:
        compiler.compile(REFUSED, compiler.configuration(Kind.EAGER))
    assert caught.value.failure.failure_class == "diagnosis"


def test_a_host_without_jaxlib_or_with_an_unknown_one_is_told_what_to_install(
    make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(ConfigurationError, match=r"pip install 'neff-cache\[torch\]'"):
        make().configuration(Kind.EAGER)
    for version in ("0.9.2", "0.13.0", "1.0"):
        monkeypatch.setattr(metadata, "version", lambda _, version=version: version)
        with pytest.raises(ConfigurationError, match=f"{version} is installed"):
            make().configuration(Kind.EAGER)


def test_nothing_is_compiled_with_another_configuration_than_the_key_says(make) -> None:
    compiler, other = make(), make(XLA_FLAGS="--xla_cpu_max_isa=SSE4_2")
    with pytest.raises(ConfigurationError, match="SSE4_2"):
        compiler.compile(ADD, other.configuration(Kind.EAGER))


def test_idle_workers_end_by_themselves_and_are_started_again(make) -> None:
    compiler = make(idle_seconds=0.3)
    configuration = compiler.configuration(Kind.EAGER)
    for _ in range(2):
        compiler.compile(ADD, configuration)
        [worker] = compiler._pool._workers
        wait_until(lambda worker=worker: not worker.alive, "the idle worker ends")
        assert worker._process.returncode == 0
        assert not os.path.exists(worker._directory)  # noqa: PTH110 - a name, not a path of this test


def test_a_worker_that_ends_idle_just_as_it_is_asked_is_replaced(make, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = make(idle_seconds=0.2)
    configuration = compiler.configuration(Kind.EAGER)
    [worker] = compiler._pool._workers
    wait_until(lambda: not worker.alive, "the idle worker ends")
    monkeypatch.setattr(type(worker), "alive", property(lambda _: True))  # as seen a moment before
    compiler.compile(ADD, configuration)


def test_a_worker_knows_no_torch_so_that_it_is_quick_and_small() -> None:
    program = f"import sys, json, {WORKER}; print(json.dumps('torch' in sys.modules))"
    assert run_script(program) is False


def test_what_a_library_prints_gets_into_the_log_and_not_between_the_answers() -> None:
    body = bytes(range(256)) * 4096
    worker = Worker("tests.fakes.printing_worker", (), lambda directory: {"HOME": directory})
    try:
        answer = worker.ask({"do": "reverse"}, body, seconds=20)
    finally:
        worker.kill()
    assert answer.header == {"ok": True, "request": {"do": "reverse"}}
    assert answer.body == body[::-1]
    assert answer.log.split("\n") == ["by sys.stdout", "on descriptor 1", "on descriptor 2", ""]


FAMILY = (
    "import os, sys, time\n"
    "from client.names import Kind\n"
    "from neuron_backend.compilers.cpu import CpuCompiler\n"
    "compiler = CpuCompiler()\n"
    "compiler.configuration(Kind.EAGER)\n"
    "child = os.fork()\n"  # as a data loader does: it holds a copy of everything
    "if child == 0:\n"
    "    time.sleep(300)\n"
    "print(child, flush=True)\n"
    "time.sleep(300)\n"
)


def test_a_killed_parent_leaves_no_worker_though_its_forked_children_live() -> None:
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], env=environ(), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        workers = children(WORKER, parent.pid)
        assert len(workers) == 1
        parent.kill()
        parent.wait()
        wait_until(lambda: not is_running(workers[0]), "the worker ends with its parent")
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.wait()
        parent.stdout.close()


FORK = (
    "import json, os, sys\n"
    "from client.names import Kind\n"
    "from neuron_backend.compilers.cpu import CpuCompiler\n"
    "from tests.fakes.modules import ADD\n"
    "from tests.fakes.waiting import children\n"
    "compiler = CpuCompiler()\n"
    "configuration = compiler.configuration(Kind.EAGER)\n"
    "ours = set(compiler._pool._workers)\n"
    "child = os.fork()\n"
    "if child == 0:\n"
    "    compiler.compile(ADD, configuration)\n"
    "    own = not ours & set(compiler._pool._workers) and len(compiler._pool._workers) == 1\n"
    "    compiler.close()\n"
    "    os._exit(0 if own else 1)\n"
    "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
    "compiler.compile(ADD, configuration)\n"
    "print(json.dumps([status, ours == set(compiler._pool._workers)]))\n"
)


def test_a_forked_child_compiles_with_workers_of_its_own_and_leaves_ours_alone() -> None:
    assert run_script(FORK) == [0, True]


def test_a_process_that_ends_without_closing_says_nothing_and_leaves_no_worker() -> None:
    script = (
        "import json\n"
        "from client.names import Kind\n"
        "from neuron_backend.compilers.cpu import CpuCompiler\n"
        "compiler = CpuCompiler()\n"
        "compiler.configuration(Kind.EAGER)\n"
        "print(json.dumps([worker._process.pid for worker in compiler._pool._workers]))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    assert ended.stderr == ""
    wait_until(lambda: not any(is_running(pid) for pid in json.loads(ended.stdout)), "the workers end")
