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

LOWERED = operators.COLUMNS[0]
SHARE = 64  # of so many operators, `make test` sweeps one
RIGHT = {OK, HOST}


def _recorded(task: Task) -> dict[str, Outcome]:
    return {each.operator: each for each in report.read_record(report.record_path(task))}


def _share(names: Sequence[str], number: int) -> list[str]:
    """Choose by the name's digest: the same operators every time, a new operator moves none."""
    return [name for name in names if hashlib.sha256(name.encode()).digest()[0] % SHARE == number]


def _worse(task: Task, names: Sequence[str], node: Path, jobs: int = 1) -> list[str]:
    before = _recorded(task)
    environment = {"NEURON_CACHE_NODE_DIR": str(node)}
    outcomes = run(task, names, jobs=jobs, environment=environment)
    return [
        f"{task.name}: {each.operator} was {before[each.operator].status}, is {each.status}: {each.reason}"
        for each in outcomes
        if each.operator in before and _fell(before[each.operator].status, each.status)
    ]


def _fell(before: str, now: str) -> bool:
    return now in {WRONG, CRASH} or (before == OK and now != OK) or (before == HOST and now not in RIGHT)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("task", "number"),
    [
        # what has its gradient right has its value right too: the forward column alone is for the soak
        pytest.param(task, number, id=task.name, marks=[] if task.gradient else pytest.mark.soak)
        for number, task in enumerate(operators.COLUMNS)
    ],
)
def test_an_operator_that_was_right_is_right_still(task: Task, number: int, tmp_path: Path) -> None:
    names = _share([each.operator for each in _recorded(task).values() if each.status in RIGHT], number)
    assert len(names) > 5
    assert _worse(task, names, tmp_path) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", operators.recorded(), ids=lambda task: task.name)
def test_every_operator_that_was_right_is_right_still(task: Task, tmp_path: Path) -> None:
    assert _worse(task, list(_recorded(task)), tmp_path, jobs=2) == []


@pytest.mark.parametrize("task", operators.COLUMNS, ids=lambda task: task.name)
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
