"""Real architectures against the records: what was right stays right; and the judge itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.models import installed, page, report
from tests.models.outcome import EAGER, GRAPH, PATHS, Figures
from tests.support.jobs import job_environment
from tests.sweep.outcome import HOST, OK, WRONG
from tests.sweep.runner import ROOT, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.sweep.outcome import Task

pytestmark = pytest.mark.skipif(bool(installed.missing()), reason=f"not installed: {installed.missing()}")

COMMAND = (sys.executable, "-m", "tests.models.worker")
RIGHT = {OK, HOST}


def worse(task: Task, names: Sequence[str], node: Path, jobs: int = 1) -> list[str]:
    before = report.read_record(task)
    environment = {"NEURON_CACHE_NODE_DIR": str(node), "NEURON_CACHE_URL": ""}
    rows = run(
        task, names, jobs=jobs, seconds=600, environment=environment, command=COMMAND, kind=Figures, batch_size=10
    )
    return [
        f"{task.mode}: {row.operator} was {was}, is {now}"
        for row in rows
        if (was := gist(before[row.operator])) != (now := gist(row)) and fell(before[row.operator], row)
    ]


def gist(row: Figures) -> str:
    return f"{row.status} with {row.breaks} graph breaks ({row.reason})"


def fell(before: Figures, now: Figures) -> bool:
    if before.status not in RIGHT:
        return now.status not in RIGHT and now.status != before.status
    return now.status not in RIGHT or (before.status == OK and now.status == HOST) or now.breaks > before.breaks


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("task", "names"), [pytest.param(EAGER, ["gpt2"], marks=pytest.mark.soak), (GRAPH, ["llama"])], ids=str
)
def test_a_model_that_ran_right_runs_right_still(task: Task, names: list[str], tmp_path: Path) -> None:
    assert {report.read_record(task)[name].status for name in names} <= RIGHT
    assert worse(task, names, tmp_path) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", PATHS, ids=lambda task: task.mode)
def test_every_model_that_ran_right_runs_right_still(task: Task, tmp_path: Path) -> None:
    assert worse(task, list(report.read_record(task)), tmp_path, jobs=2) == []


@pytest.mark.parametrize("task", PATHS, ids=lambda task: task.mode)
def test_nothing_in_the_records_is_wrong_or_a_crash(task: Task) -> None:
    rows = report.read_record(task)
    assert [row.operator for row in rows.values() if row.status not in RIGHT] == []
    assert len([name for name in rows if "/" not in name]) >= 40
    assert len([name for name in rows if "/" in name]) >= 20


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_generated_tokens_are_the_cpus_and_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    def generate() -> dict[str, object]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.models.generating"],
            cwd=ROOT,
            env=job_environment(tmp_path, ""),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return answer

    first = generate()
    tokens = first["tokens"]
    assert isinstance(tokens, dict)
    assert tokens["eager"] == tokens["graph"] == tokens["cpu"]
    assert first["compiles"]
    assert first["graphs"]
    assert first["host"] == {}
    assert generate() == {**first, "compiles": 0}


def test_the_page_of_models_is_that_of_the_records() -> None:
    assert page.DOCUMENT.read_text() == page.document(), "run: python -m tests.models.page --write"


def test_a_wrong_gradient_is_told_from_rounding() -> None:
    torch = pytest.importorskip("torch")
    from tests.models import running  # noqa: PLC0415 - torch takes seconds

    exact = {"output 0": torch.tensor([1.0, 2.0]).double(), "gradient of w": torch.tensor([0.5, -3.0]).double()}
    cpu = {name: each.float() * (1 + 2e-7) for name, each in exact.items()}
    near = {name: each.float() * (1 - 1e-6) for name, each in exact.items()}
    assert running.error(near, cpu, exact)[0] < 1
    for change in (1e-4, -1e-2, math.nan, math.inf):
        wrong = {**near, "gradient of w": near["gradient of w"] + change}
        share, where = running.error(wrong, cpu, exact)
        assert share > 1
        assert where == "gradient of w"
    assert running.error({"output 0": near["output 0"]}, cpu, exact)[0] == math.inf
    assert running.error({**near, "output 0": near["output 0"].reshape(2, 1)}, cpu, exact)[0] == math.inf
    forward = {name: each + 1 for name, each in near.items()}
    assert running.error(forward, cpu, exact)[1] == "output 0"


def test_a_model_that_falls_to_the_host_or_breaks_its_graph_counts_as_worse() -> None:
    row = Figures("some", OK, breaks=1)
    assert not fell(row, replace(row, breaks=0))
    for worsened in (replace(row, status=HOST), replace(row, status=WRONG), replace(row, breaks=2)):
        assert fell(row, worsened)
