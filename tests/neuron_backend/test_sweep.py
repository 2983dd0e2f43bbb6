"""PyTorch's operator database against the records: what was right stays right."""

from __future__ import annotations

import hashlib
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.sweep import operators, report
from tests.sweep.outcome import CRASH, HOST, OK, WRONG, Outcome, Task
from tests.sweep.runner import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOWERED = Task("lowered", "float32", gradient=False, samples=1)
# So many operators of a column are swept by `make test`; what has its gradient right has its value right too.
SHARES = {"lowered-float32": 0, "lowered-float32-gradient": 4, "device-float32-gradient": 4}
SHARE = 1  # of each other column
MIXED = (sys.executable, "-m", "tests.sweep.mixed")
RIGHT = {OK, HOST}


def _recorded(task: Task) -> dict[str, Outcome]:
    return {each.operator: each for each in report.read_record(report.record_path(task))}


def _share(task: Task) -> list[str]:
    """Choose by the names' digests: the same operators every time, and a new one moves one at most."""
    right = [each.operator for each in _recorded(task).values() if each.status in RIGHT]
    chosen = sorted(right, key=lambda name: hashlib.sha256(f"{task.name}:{name}".encode()).digest())
    return chosen[: SHARES.get(task.name, SHARE)]


def _worse(before: dict[str, Outcome], outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"{each.operator} was {before[each.operator].status}, is {each.status}: {each.reason}"
        for each in outcomes
        if _fell(before[each.operator].status, each.status)
    ]


def _fell(before: str, now: str) -> bool:
    return now in {WRONG, CRASH} or (before == OK and now != OK) or (before == HOST and now not in RIGHT)


@pytest.mark.timeout(300)
def test_operators_that_were_right_are_right_still_in_every_column(tmp_path: Path) -> None:
    before = {}
    for task in operators.ours():
        recorded = _recorded(task)
        before |= {f"{task.name}:{name}": recorded[name] for name in _share(task)}
    assert len(before) > len(operators.ours())
    outcomes = run(LOWERED, list(before), environment={"NEURON_CACHE_NODE_DIR": str(tmp_path)}, command=MIXED)
    assert _worse(before, outcomes) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", operators.ours(), ids=lambda task: task.name)
def test_every_operator_that_was_right_is_right_still(task: Task, tmp_path: Path) -> None:
    before = _recorded(task)
    outcomes = run(task, list(before), jobs=2, environment={"NEURON_CACHE_NODE_DIR": str(tmp_path)})
    assert _worse(before, outcomes) == []


@pytest.mark.parametrize("task", operators.ours(), ids=lambda task: task.name)
def test_nothing_in_the_records_is_wrong_or_a_crash(task: Task) -> None:
    assert [each.operator for each in _recorded(task).values() if each.status in {WRONG, CRASH}] == []


def test_the_page_of_operators_is_that_of_the_records() -> None:
    assert operators.DOCUMENT.read_text() == operators.document(), "run: python -m tests.sweep.operators --write"


@pytest.mark.parametrize(
    ("how", "said"),
    [("signal", signal.SIGSEGV.name), pytest.param("hang", "no answer within", marks=pytest.mark.soak)],
)
def test_an_operator_that_kills_or_blocks_the_process_costs_itself_alone(how: str, said: str, tmp_path: Path) -> None:
    """The child is a program of ours that breaks at its second operator."""
    program = tmp_path / "worker.py"
    breaking = "os.kill(os.getpid(), signal.SIGSEGV)" if how == "signal" else "time.sleep(600)"
    program.write_text(
        "import json, os, signal, sys, time\n"
        "for line in sys.stdin:\n"
        "    name = line.strip()\n"
        "    print(json.dumps({'begin': name}), flush=True)\n"
        f"    if name == 'bad': {breaking}\n"
        "    print(json.dumps({'operator': name, 'status': 'ok', 'reason': ''}), flush=True)\n"
    )
    seconds = 60.0 if how == "hang" else 100.0
    first, bad, last = run(LOWERED, ["first", "bad", "last"], seconds=seconds, command=[sys.executable, str(program)])
    assert (first.status, last.status) == (OK, OK)
    assert bad.status == CRASH
    assert said in bad.reason
