"""What client and server say to each other survives the way, and nothing malformed gets through."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import errors, wire
from client.errors import WireError
from client.names import Kind, check_digest, check_kind, check_output, check_project

ENTRY = wire.Entry(
    project="default",
    kind=Kind.GRAPH,
    key="a" * 64,
    outputs=(wire.Output("model.neff", "b" * 64, 2140160), wire.Output("compile.log", "c" * 64, 911, "zstd", 402)),
    created="2026-11-29T23:00:00Z",
    compile_seconds=12.3,
    producer=wire.Producer("neff-cache/0.1.0", "host", "llama-8b"),
    key_document={"schema": 1},
)
HOLDER = wire.Holder("host", 12, 3, "llama")


def test_an_entry_survives_the_way():
    assert wire.Entry.from_json(json.loads(json.dumps(ENTRY.to_json()))) == ENTRY


def test_a_newer_party_may_add_members():
    assert wire.Entry.from_json({**ENTRY.to_json(), "new": 1}) == ENTRY


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"project": "Default"},
        {"kind": "graphs"},
        {"key": "A" * 64},
        {"outputs": []},
        {"outputs": None},
        {"outputs": [ENTRY.outputs[0].to_json()] * 2},
        {"outputs": [{**ENTRY.outputs[0].to_json(), "name": "../x"}]},
        {"outputs": [{**ENTRY.outputs[0].to_json(), "size": -1}]},
        {"outputs": [{**ENTRY.outputs[0].to_json(), "size": True}]},
        {"outputs": [{**ENTRY.outputs[0].to_json(), "stored_size": 1}]},
        {"outputs": [{**ENTRY.outputs[0].to_json(), "encoding": "gzip"}]},
        {"created": 3},
        {"compile_seconds": float("nan")},
        {"compile_seconds": -1},
        {"compile_seconds": "1"},
        {"producer": None},
        {"key_document": []},
        {"peak_memory_bytes": -1},
        {"signature": "x"},
    ],
    ids=str,
)
def test_a_malformed_entry_is_never_taken(change):
    with pytest.raises(WireError):
        wire.Entry.from_json({**ENTRY.to_json(), **change})


def test_the_header_holds_the_entry_without_its_document():
    text = ENTRY.to_header()
    assert text is not None
    assert wire.Entry.from_header(text) == ENTRY.without_document()


def test_an_entry_too_large_for_a_header_is_not_cut():
    outputs = tuple(wire.Output(f"output-{index}", "b" * 64, 1) for index in range(40))
    assert dataclasses.replace(ENTRY, outputs=outputs).to_header() is None


@pytest.mark.parametrize("text", ["", "%%%", "bm90IGpzb24=", "W10="])
def test_a_garbled_header_is_never_taken(text):
    with pytest.raises(WireError):
        wire.Entry.from_header(text)


@pytest.mark.parametrize(
    "answer",
    [
        wire.Ready(ENTRY),
        wire.Granted("token", 5, 30.0),
        wire.Wait(5, HOLDER, "2026-11-29T23:00:00Z", 20.5),
        wire.Failed(errors.Failure("diagnosis", "NCC_EVRF001", "log"), 300.0, replayed=True, host="other"),
        wire.NotGranted(),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_a_lease_answer_survives_the_way(answer):
    assert wire.lease_answer_from_json(json.loads(json.dumps(wire.lease_answer_to_json(answer)))) == answer


@pytest.mark.parametrize(
    "value",
    [None, {}, {"state": "perhaps"}, {"state": "granted"}, {"state": "ready"}, {"state": "wait", "generation": "1"}],
    ids=str,
)
def test_a_malformed_lease_answer_is_never_taken(value):
    with pytest.raises(WireError):
        wire.lease_answer_from_json(value)


def test_a_long_log_keeps_its_end_where_the_diagnosis_stands():
    failure = errors.Failure("diagnosis", "text", "x" * errors.MAX_LOG + "NCC_E")
    assert failure.to_json()["log"].endswith("NCC_E")
    assert len(failure.to_json()["log"]) == errors.MAX_LOG


@given(st.text(max_size=70))
def test_no_odd_name_reaches_a_path(text):
    for check in (check_project, check_output, check_digest, check_kind):
        try:
            check(text)
        except WireError:
            continue
        assert text.isascii()
        assert text == text.lower()
        assert "/" not in text
        assert not text.startswith((".", "-"))
        assert 0 < len(text) <= 64
