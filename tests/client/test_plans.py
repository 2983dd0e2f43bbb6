from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError, FormatError
from client.names import Kind
from client.plans import by_project, find_plan, parse_plan, read_plan
from client.record import append_record, record_line
from tests.client.programs import compiled, document, entry_of

if TYPE_CHECKING:
    from pathlib import Path

_KEY = "a" * 64


def _line(**values: object) -> bytes:
    return json.dumps({"schema": 1, "kind": "graph", "key": _KEY, **values}).encode()


def test_what_a_job_records_is_what_a_plan_reads(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    entries = [entry_of(document(name), compiled().outputs, "team-a") for name in "abc"]
    for entry in (*entries, entries[0]):
        append_record(path, record_line(entry, "llama"))
    plan = read_plan(path, "default")
    assert [(wanted.project, wanted.kind, wanted.key) for wanted in plan] == [
        (entry.project, entry.kind, entry.key) for entry in entries
    ]
    assert {(wanted.label, wanted.compile_seconds) for wanted in plan} == {("llama", 1.5)}


def test_an_entry_that_many_ranks_recorded_stands_once() -> None:
    assert len(parse_plan(b"\n".join([_line()] * 64), "default")) == 1
    assert len(parse_plan(_line() + b"\n" + _line(kind="eager"), "default")) == 2


def test_a_line_without_a_project_is_of_the_callers() -> None:
    plan = parse_plan(_line() + b"\n" + _line(project="other", key="b" * 64), "mine")
    assert {project: [wanted.kind for wanted in group] for project, group in by_project(plan).items()} == {
        "mine": [Kind.GRAPH],
        "other": [Kind.GRAPH],
    }


@pytest.mark.parametrize(
    "bad",
    [
        b"{",
        b"[]",
        b"7",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        _line(key="../../etc/passwd"),
        _line(kind="unknown"),
        _line(project="../x"),
        _line(key=None),
    ],
)
def test_a_line_that_names_no_entry_is_an_error_with_its_number(bad: bytes) -> None:
    with pytest.raises(FormatError, match="line 2 of"):
        parse_plan(_line() + b"\n" + bad, "default")


def test_an_empty_plan_has_no_entries() -> None:
    assert parse_plan(b"\n\n", "default") == []


def test_a_file_comes_before_a_stored_plan_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_bytes(_line())
    assert len(find_plan("plan", path, "default", lambda _: b"")) == 1
    assert find_plan("other", tmp_path / "other", "default", lambda _: b"") == []


def test_a_plan_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'nothing' is neither a file nor a plan"):
        find_plan("nothing", tmp_path / "nothing", "default", lambda _: None)
    with pytest.raises(ConfigurationError, match="there is no file 'nothing'"):
        find_plan("nothing", tmp_path / "nothing", "default", None)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        find_plan("some/where", tmp_path / "some/where", "default", None)
