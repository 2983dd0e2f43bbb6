"""Hits that are compiled once more and compared: what is wrong in the cache is noticed, and the job is left alone."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from client.cache import Cache
from client.errors import CompileError, Failure
from client.names import Kind
from client.warnings import Notices
from neuron_backend import programs, shadow
from neuron_backend.compilers.cpu import CpuCompiler
from neuron_backend.likeness import unlikeness
from neuron_backend.lowering import lower, trace, trim, used_inputs
from neuron_backend.runtimes.cpu import CpuRuntime
from tests.support.jobs import job_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from client.artifact import Compiled
    from neuron_backend.module import Module

PATIENCE = 100.0
X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def module(function: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor = X) -> Module:
    graph = trace(lambda each: [function(each)], [example])
    trim(graph)
    used_inputs(graph)
    return lower(graph)


@pytest.fixture(scope="module")
def compiler() -> Iterator[CpuCompiler]:
    made = CpuCompiler(os.environ)
    yield made
    made.close()


class Instead:
    """The real compiler, which compiles another module than it is given."""

    def __init__(self, compiler: CpuCompiler, other: Module) -> None:
        self._compiler, self._other = compiler, other
        self.configuration = compiler.configuration

    def compile(self, code: bytes, configuration: Any) -> Compiled:
        made = self._compiler.compile(self._other.code, configuration)
        return replace(made, outputs={**made.outputs, "module.mlirbc": code})


class Job:
    """A process's programs over a node tier, all hits checked."""

    def __init__(self, node: Path, compiler: CpuCompiler, *, checking: Any = None, **options: Any) -> None:
        environ = {"NEURON_CACHE_NODE_DIR": str(node)}
        self.runtime = CpuRuntime(os.environ)
        self.shadow = shadow.Shadow(
            options.pop("share", 1.0), self.runtime, notices=Notices(), random=lambda: 0.5, **options
        )
        checks = (self.shadow, checking or compiler)
        self.programs = programs.Programs(Cache.from_environment(environ), compiler, self.runtime, checks)

    def finished(self, count: int) -> dict[str, Any]:
        """Return the report once ``count`` comparisons have ended, however they did."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            report = self.shadow.report()
            if sum(report[name] for name in ("equal", "close", "different", "failed", "skipped")) >= count:
                return report
            time.sleep(0.01)
        raise AssertionError(self.shadow.report())


def publish(node: Path, compiler: Any, wanted: Module) -> None:
    """Compile ``wanted`` with ``compiler`` into the node tier, as an earlier job did."""
    environ = {"NEURON_CACHE_NODE_DIR": str(node)}
    cache = Cache.from_environment(environ)
    programs.Programs(cache, compiler, CpuRuntime(os.environ)).get(Kind.GRAPH, wanted)
    cache.close()


def test_a_program_that_was_compiled_of_another_constant_is_reported(tmp_path, compiler, caplog):
    caplog.set_level(logging.WARNING, "neff_cache")
    wanted = module(lambda x: x * 3.5)
    publish(tmp_path, Instead(compiler, module(lambda x: x * 4.5)), wanted)
    job = Job(tmp_path, compiler)
    program = job.programs.get(Kind.GRAPH, wanted)
    for _ in range(3):
        (result,) = program([X])
        assert torch.equal(result, X * 4.5)  # wrong, and the job's own: what runs is not changed
    report = job.finished(1)
    (key,) = report["differences"]
    assert (report["sampled"], report["different"]) == (1, 1)
    assert report["differences"][key] == (
        "output 0 (float32[2, 3]) differs by 5, with elements up to 22.5 and 0.0001 of that allowed"
    )
    assert job.programs.report()["shadow"] == report
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert key in said[0]
    assert "does not compute what a fresh compile of the same module does" in said[0]


def test_sound_hits_are_counted_as_equal_and_nothing_is_said(tmp_path, compiler, caplog):
    caplog.set_level(logging.WARNING, "neff_cache")
    wanted = module(lambda x: (x.tanh() @ x.t()).softmax(-1))
    publish(tmp_path, compiler, wanted)
    job = Job(tmp_path, compiler)
    job.programs.get(Kind.GRAPH, wanted)([X])
    report = job.finished(1)
    assert (report["equal"], report["differences"]) == (1, {})
    assert not caplog.records


def test_what_this_process_compiled_and_what_was_not_drawn_is_not_checked(tmp_path, compiler):
    wanted = module(lambda x: x + 2.5)
    own = Job(tmp_path, compiler)
    own.programs.get(Kind.GRAPH, wanted)([X])
    assert own.shadow.report()["sampled"] == 0
    other = Job(tmp_path, compiler, share=0.4)
    other.programs.get(Kind.GRAPH, wanted)([X])
    assert other.shadow.report()["sampled"] == 0


def test_the_job_goes_on_while_the_second_compile_takes_its_time(tmp_path, compiler):
    released = threading.Event()

    class Slow:
        def compile(self, code: bytes, configuration: Any) -> Compiled:
            assert released.wait(PATIENCE)
            return compiler.compile(code, configuration)

    wanted = module(lambda x: x * 1.5 + 1)
    publish(tmp_path, compiler, wanted)
    job = Job(tmp_path, compiler, checking=Slow())
    program = job.programs.get(Kind.GRAPH, wanted)
    given = X.clone()
    (result,) = program([given])
    # as an optimizer does: the comparison is of the values that were there at the call
    given.zero_()
    result.fill_(float("nan"))
    assert torch.equal(program([X])[0], X * 1.5 + 1)
    assert job.shadow.report()["equal"] == 0
    released.set()
    assert job.finished(1)["equal"] == 1


def test_calls_that_are_too_large_or_too_many_are_skipped(tmp_path, compiler):
    wanted = module(lambda x: x - 7.5)
    publish(tmp_path, compiler, wanted)
    job = Job(tmp_path, compiler, most_bytes=2 * X.nbytes - 1)
    job.programs.get(Kind.GRAPH, wanted)([X])
    assert job.finished(1)["skipped"] == 1
    job = Job(tmp_path, compiler, most_bytes=2 * X.nbytes)
    job.programs.get(Kind.GRAPH, wanted)([X])
    assert job.finished(1)["equal"] == 1


def test_a_second_compile_that_fails_is_counted_and_warned_of_once(tmp_path, compiler, caplog):
    caplog.set_level(logging.WARNING, "neff_cache")

    class Failing:
        def compile(self, code: bytes, configuration: Any) -> Compiled:
            raise CompileError(Failure("resource", "no memory left"))

    both = [module(lambda x: x * 2.25), module(lambda x: x * 2.75)]
    job = Job(tmp_path, compiler, checking=Failing())
    for each in both:
        publish(tmp_path, compiler, each)
        job.programs.get(Kind.GRAPH, each)([X])
    assert job.finished(2)["failed"] == 2
    assert len(caplog.records) == 1
    assert "no memory left" in caplog.text


def test_after_the_end_nothing_is_compared(tmp_path, compiler):
    wanted = module(lambda x: x / 3)
    publish(tmp_path, compiler, wanted)
    job = Job(tmp_path, compiler)
    program = job.programs.get(Kind.GRAPH, wanted)
    job.shadow.close()
    program([X])
    report = job.shadow.report()
    assert (report["equal"], report["skipped"]) == (0, 0)


@pytest.mark.parametrize("text", ["often", "1.5", "-0.1", "nan"])
def test_a_share_that_means_nothing_is_warned_of_and_checks_nothing(text, caplog):
    caplog.set_level(logging.WARNING, "neff_cache")
    assert shadow.fraction({shadow.SETTING: text}, Notices()) == 0
    assert "expected 0 to 1" in caplog.text


@pytest.mark.parametrize(("text", "share"), [("0", 0.0), ("0.01", 0.01), ("1", 1.0)])
def test_a_share_is_read_as_it_stands(text, share):
    assert shadow.fraction({shadow.SETTING: text}, Notices()) == share


JOB = """
import json, time, torch, neuron_backend
x = torch.arange(6.0).reshape(2, 3).to("neuron")
with torch.inference_mode():
    value = (x * 3.5).exp().cpu().tolist()
end = time.monotonic() + 100
def ended():
    report = neuron_backend.report().get("shadow")
    return report is None or sum(report[n] for n in ("equal", "close", "different", "failed")) == report["sampled"]
while not ended() and time.monotonic() < end:
    time.sleep(0.02)
print(json.dumps([value, neuron_backend.report().get("shadow")]))
"""


@pytest.mark.soak
def test_the_setting_has_a_jobs_hits_checked_and_its_summary_says_how_many(tmp_path):
    def run(name: str, **settings: str) -> tuple[Any, Any, Any]:
        environment = job_environment(tmp_path, "", NEURON_CACHE_SUMMARY=str(tmp_path / name), **settings)
        done = subprocess.run(
            [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, timeout=110, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return *json.loads(done.stdout), json.loads((tmp_path / name).read_text())

    first, nothing, summary = run("first.json")
    assert nothing is None
    assert "shadow" not in summary
    second, report, summary = run("second.json", NEURON_BACKEND_SHADOW="1")
    assert second == first
    assert report == {
        "sampled": 2,
        "equal": 2,
        "close": 0,
        "different": 0,
        "skipped": 0,
        "failed": 0,
        "differences": {},
    }
    assert summary["shadow"] == {"sampled": 2, "equal": 2}
    assert (summary["compiles"], summary["hits"]["disk"]) == (0, 2)


@pytest.mark.parametrize(
    ("ours", "theirs", "said", "equal"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), "", True),
        (torch.tensor([1000.0, 1e-6]), torch.tensor([1000.05, 0.0]), "", False),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), "differs by 0.1", False),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("inf")]), "has 1 other infinities or NaN", False),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 5, 6]), "has 2 other elements", False),
        (torch.tensor([True]), torch.tensor([False]), "has 1 other elements", False),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "", False),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 2j]), "differs by 1", False),
        (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.03], dtype=torch.bfloat16), "", False),
        (torch.tensor([]), torch.tensor([]), "", True),
    ],
)
def test_results_are_compared_by_what_their_type_can_hold(ours, theirs, said, equal):
    text, same = unlikeness([ours], [theirs])
    assert (said in text, same) == (True, equal)
    assert bool(text) == bool(said)
