"""``neff-cache prewarm``: a plan that ``check`` takes, and one sentence for everything that can go wrong."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

import neuron_backend
from client.cli.main import app
from client.plans import parse_plan
from neuron_backend.eager import dispatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRIES = """
import torch
from tests.support.unlowered import unlowered

def lengths():
    return torch.nn.Linear(4, 2), lambda length: (torch.zeros(length, 4),)

def listed():
    return (lambda x: x * 2), [(torch.ones(2),), (torch.ones(3),)]

def fallback():
    return (lambda x: unlowered(x)), [(torch.ones(2, 2),)]

def raises():
    raise KeyError("weights")

def number():
    return 7

def no_tuple():
    return (lambda x: x), [torch.ones(2)]

def empty():
    return (lambda x: x), []
"""


class Ran:
    def __init__(self, result) -> None:
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        self.status, self.stdout, self.stderr = result.exit_code, result.stdout, result.stderr


@pytest.fixture
def entries(tmp_path: Path) -> str:
    path = tmp_path / "prewarm_entries.py"
    path.write_text(ENTRIES)
    return str(path)


@pytest.fixture(autouse=True)
def _unchanged(tmp_path: Path) -> Iterator[None]:
    """The command writes its settings into the environment, as a process of its own may."""
    before = dict(os.environ)
    os.environ.update(NEURON_CACHE_NODE_DIR=str(tmp_path / "node"), NEURON_CACHE_URL=str(tmp_path / "shared"))
    yield
    os.environ.clear()
    os.environ.update(before)
    torch._dynamo.reset()
    dispatch.clear()
    neuron_backend.clear_fallback_ops()


def prewarm(*words: str) -> Ran:
    return Ran(CliRunner().invoke(app, ["prewarm", *words]))


def test_a_plan_is_written_that_check_takes_before_and_after(entries, tmp_path):
    plan = tmp_path / "out.plan"
    words = (f"{entries}:lengths", "--meta", "--shapes", "2,3", "--backward", "--plan", str(plan))
    assert prewarm(*words, "--keys-only").status == 0
    assert CliRunner().invoke(app, ["check", str(plan)]).exit_code == 1
    ran = prewarm(*words)
    assert [line.split("\t")[:6] for line in ran.stdout.splitlines()[1:-1]] == [
        ["2", "2", "0", "0", "2", "0"],
        ["3", "2", "0", "0", "2", "0"],
    ]
    assert "4 programs: 4 compiled, 0 were there already" in ran.stdout
    assert CliRunner().invoke(app, ["check", str(plan)]).exit_code == 0
    assert all(each.compile_seconds > 0 for each in parse_plan(plan.read_bytes(), "default"))


def test_json_has_every_key_and_the_buckets_own_names(entries):
    ran = prewarm(f"{entries}:listed", "--keys-only", "--json")
    report = json.loads(ran.stdout)
    assert [bucket["label"] for bucket in report["buckets"]] == ["2", "3"]
    assert len({program["key"] for program in report["programs"]}) == 2
    assert report["complete"]


def test_a_graph_without_a_program_ends_with_1_and_names_operator_and_line_unless_that_is_allowed(entries):
    ran = prewarm(f"{entries}:fallback")
    assert ran.status == 1
    assert "bucket 2x2: operator neff_cache_tests.unlowered.default of the forward graph 0/0" in ran.stderr
    assert "prewarm_entries.py:12" in ran.stderr
    assert prewarm(f"{entries}:fallback", "--allow-fallback").status == 0


@pytest.mark.parametrize(
    ("entry", "words", "reason"),
    [
        ("raises", (), "raised KeyError: 'weights' (at "),
        ("number", (), "returned a int: expected (module or function, inputs)"),
        ("no_tuple", (), "gives a Tensor as the inputs of a bucket: expected a tuple"),
        ("empty", (), "gives no inputs"),
        ("nobody", (), "has no function 'nobody'; it has empty, fallback, lengths"),
        ("lengths", (), "say which with --shapes"),
        ("listed", ("--shapes", "2"), "gives its inputs itself: leave out --shapes"),
        ("lengths", ("--shapes", "2;3"), "--shapes holds no shapes"),
        ("listed", ("--backward", "--as-is"), "exclude each other"),
        ("listed", ("--target", "no such"), "no Neuron compiler"),
    ],
)
def test_what_cannot_be_prewarmed_is_said_in_one_sentence(entries, entry, words, reason, monkeypatch):
    monkeypatch.setenv("PATH", "")
    ran = prewarm(f"{entries}:{entry}", *words)
    assert (ran.status, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert reason in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("no_such_package.module:f", "there is no module 'no_such_package.module'"),
        ("words", "'words' is no entry point: expected package.module:function or file.py:function"),
    ],
)
def test_an_entry_point_that_is_not_there_is_said_in_one_sentence(name, reason):
    ran = prewarm(name)
    assert (ran.status, ran.stderr.count("\n")) == (2, 1)
    assert reason in ran.stderr


def test_a_target_is_refused_where_the_stand_in_was_chosen(entries, monkeypatch):
    monkeypatch.setenv("NEURON_BACKEND_COMPILER", "cpu")
    ran = prewarm(f"{entries}:listed", "--target", "trn2")
    assert ran.status == 2
    assert "the stand-in compiles for the CPU of this host and no other" in ran.stderr


def test_a_bucket_that_fails_leaves_no_plan(entries, tmp_path):
    (tmp_path / "prewarm_mixed.py").write_text(
        "import torch\ndef mixed():\n    return torch.nn.Linear(4, 2), [(torch.ones(2, 4),), (torch.ones(2, 5),)]\n"
    )
    plan = tmp_path / "out.plan"
    ran = prewarm(f"{tmp_path / 'prewarm_mixed.py'}:mixed", "--keys-only", "--plan", str(plan))
    assert ran.status == 1
    assert not plan.exists()
    assert "was not written" in ran.stderr
