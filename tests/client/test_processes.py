"""Several real processes on one node tier: started together, killed, forked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.key import key_of
from tests.client.programs import document
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]

JOB = """
import hashlib, json, os, sys, time
from client.cache import Cache
from tests.client.programs import compiled, document

log, seconds, *names = sys.argv[1:]
cache = Cache.from_environment()

def compiler(name):
    with open(log, "a") as file:
        file.write(f"{name} {os.getpid()}\\n")
    time.sleep(float(seconds))
    return compiled()

print("ready", flush=True)
sys.stdin.readline()
found = {name: cache.get_or_compile(document(name), lambda: compiler(name)) for name in names}
print(json.dumps({name: [one.source, hashlib.sha256(one.neff).hexdigest()] for name, one in found.items()}), flush=True)
"""


class Job:
    """One process of a job: started, waiting for the barrier."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB, *arguments],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def go(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        assert self.process.stdout.readline() == "ready\n"
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, tuple[str, str]]:
        out, _ = self.process.communicate(timeout=HANG_SECONDS)
        assert self.process.returncode == 0
        return json.loads(out)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(HANG_SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def log(tmp_path) -> Path:
    return tmp_path / "compiles"


@pytest.fixture
def start(tmp_path, log) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def run(*names: str, seconds: float = 0.2, **settings: Any) -> Job:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "NEURON_CACHE_NODE_DIR": str(tmp_path / "tier"),
            **{name: str(value) for name, value in settings.items()},
        }
        jobs.append(Job([str(log), str(seconds), *names], environment))
        return jobs[-1]

    yield run
    for job in jobs:
        job.kill()


def _compiles(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def _until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_eight_processes_that_start_together_compile_each_program_once(start, log, tmp_path):
    names = ["a", "b", "c", "d", "e"]
    summary = tmp_path / "summary.json"
    jobs = [start(*names, NEURON_CACHE_SUMMARY=summary) for _ in range(8)]
    for job in jobs:
        job.go()
    results = [job.result() for job in jobs]
    assert sorted(_compiles(log)) == names
    for name in names:
        assert len({result[name][1] for result in results}) == 1
    total = json.loads(summary.read_text())
    assert total["compiles"] == total["misses"] == 5
    assert total["lookups"] == 40
    assert total["hits"] == {"memory": 0, "disk": 35, "remote": 0}
    assert total["keys"] == sorted(document(name).key for name in names)
    assert sorted(total["pids"]) == sorted(job.process.pid for job in jobs)
    assert total["by_kind"]["graph"]["lookups"] == 40


def test_two_nodes_over_a_shared_folder_compile_each_program_once(start, log, tmp_path):
    names = ["a", "b", "c"]
    shared = {"NEURON_CACHE_URL": tmp_path / "shared"}
    jobs = [start(*names, NEURON_CACHE_NODE_DIR=tmp_path / f"node{number % 2}", **shared) for number in range(4)]
    for job in jobs:
        job.go()
    results = [job.result() for job in jobs]
    assert sorted(_compiles(log)) == names
    for name in names:
        assert len({result[name][1] for result in results}) == 1
    fresh = start(*names, NEURON_CACHE_NODE_DIR=tmp_path / "node2", **shared)
    fresh.go()
    assert {source for source, _ in fresh.result().values()} == {"remote"}


def test_when_the_process_that_compiles_is_killed_another_takes_over_with_nothing_to_clean(start, log, tmp_path):
    first = start("a", seconds=60)
    first.go()
    _until(lambda: _compiles(log))
    others = [start("a", seconds=0.1) for _ in range(3)]
    for job in others:
        job.go()
    time.sleep(0.3)
    assert len(_compiles(log)) == 1
    first.process.send_signal(signal.SIGKILL)
    results = [job.result()["a"] for job in others]
    assert len(_compiles(log)) == 2
    assert len({digest for _, digest in results}) == 1
    key = document("a").key
    left = [str(path.relative_to(tmp_path / "tier")) for path in (tmp_path / "tier").rglob("*") if path.is_file()]
    assert f"v1/default/graph/{key[:2]}/{key}/model.neff" in left
    assert not [path for path in left if path.endswith((".lock", ".failed")) and "sweep" not in path]
    last = start("a")
    last.go()
    assert last.result()["a"][0] == "disk"


def test_a_job_that_is_killed_leaves_its_record(start, log, tmp_path):
    record = tmp_path / "plan.jsonl"
    job = start("a", "b", "slow", seconds=0.5, NEURON_CACHE_RECORD=record, NEURON_CACHE_LABEL="llama")
    job.go()
    _until(lambda: len(_compiles(log)) == 3)
    job.process.send_signal(signal.SIGKILL)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["key"] for line in lines] == [document("a").key, document("b").key]
    assert lines[0] == {
        "schema": 1,
        "project": "default",
        "kind": "graph",
        "key": key_of(document("a").to_json()),
        "label": "llama",
        "compile_seconds": 1.5,
    }


FORKING = """
import os, sys, time
from client.cache import Cache
from tests.client.programs import compiled, document

cache = Cache.from_environment()
cache.get_or_compile(document("a"), compiled)
child = os.fork()
if not child:
    assert cache.statistics.lookups == 0
    assert cache.get_or_compile(document("a"), compiled).source == "disk"
    cache.get_or_compile(document("b"), compiled)
    if sys.argv[1] == "_exit":
        os._exit(0)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert cache.get_or_compile(document("b"), compiled).source == "disk"
idle = os.fork()
if not idle:
    sys.exit(0)
assert os.waitpid(idle, 0)[1] == 0
"""


@pytest.mark.parametrize(("ending", "lookups", "processes"), [("exit", 4, 2), ("_exit", 2, 1)])
def test_a_forked_child_counts_its_own_work_and_nobody_counts_twice(tmp_path, ending, lookups, processes):
    summary = tmp_path / "summary.json"
    environment = {
        "PATH": os.environ["PATH"],
        "NEURON_CACHE_NODE_DIR": str(tmp_path / "tier"),
        "NEURON_CACHE_SUMMARY": str(summary),
    }
    subprocess.run([sys.executable, "-c", FORKING, ending], env=environment, cwd=ROOT, timeout=HANG_SECONDS, check=True)
    total = json.loads(summary.read_text())
    assert total["lookups"] == lookups
    assert len(total["pids"]) == processes


FORKING_AMID_WORK = """
import os, threading
from client.cache import Cache
from tests.client.programs import compiled, document

cache = Cache.from_environment()
started, forked = threading.Event(), threading.Event()

def slow():
    started.set()
    assert forked.wait(90)
    return compiled()

thread = threading.Thread(target=lambda: cache.get_or_compile(document("slow"), slow))
thread.start()
assert started.wait(90)
child = os.fork()
if not child:
    # the flight and the lock of the parent are not ours: another program is compiled at once
    source = cache.get_or_compile(document("other"), compiled).source
    os._exit(0 if source == "compile" else 1)
assert os.waitpid(child, 0)[1] == 0
forked.set()
thread.join(90)
assert cache.get_or_compile(document("slow"), compiled).source == "memory"
assert cache.get_or_compile(document("other"), compiled).source == "disk"
"""


def test_a_fork_while_another_thread_compiles_stops_neither(tmp_path):
    environment = {"PATH": os.environ["PATH"], "NEURON_CACHE_NODE_DIR": str(tmp_path / "tier")}
    subprocess.run(
        [sys.executable, "-c", FORKING_AMID_WORK], env=environment, cwd=ROOT, timeout=HANG_SECONDS, check=True
    )


def test_the_import_of_the_cache_is_light():
    script = (
        "import sys; bare = set(sys.modules); import client.cache; "
        "heavy = {'http', 'ssl', 'email', 'typer', 'rich', 'asyncio', 'multiprocessing', 'urllib.request', 'tarfile'}; "
        "print(sorted(heavy & (set(sys.modules) - bare)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert done.stdout.strip() == "[]"
