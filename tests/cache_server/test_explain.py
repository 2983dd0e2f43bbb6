from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from client.names import Kind
from tests.cache_server.harness import build, problem

if TYPE_CHECKING:
    from tests.cache_server.harness import InProcess


def _document(**changes: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "graph",
        "ir": {"dialect": "stablehlo", "sha256": "1" * 64},
        "compiler": {"name": "neuronx-cc", "version": "2.27.0+a"},
        "target": "trn2",
        "flags": ["-O2", "--model-type", "transformer"],
        **changes,
    }


def _nearest(server: InProcess, document: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    answer = server.call("POST", "/v1/default/explain", json={"key_document": document, **more})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["nearest"])


def test_the_entry_with_the_fewest_differences_is_named_first(either: InProcess) -> None:
    stored = {
        "flag": _document(flags=["-O2", "--model-type", "unet"]),
        "much": _document(target="trn1", compiler={"name": "neuronx-cc", "version": "2.26.0+b"}),
        "other program": _document(ir={"dialect": "stablehlo", "sha256": "2" * 64}),
    }
    for name, document in stored.items():
        either.publish(build(name, name.encode(), key_document=document))
    near = _nearest(either, _document(), limit=3)
    assert [[difference["path"] for difference in one["differences"]] for one in near] == [
        ["flags.--model-type"],
        ["compiler.version", "target"],
        ["ir.sha256"],
    ]
    assert near[0]["differences"][0] == {
        "path": "flags.--model-type",
        "stored": "--model-type unet",
        "asked": "--model-type transformer",
    }
    assert (near[0]["host"], near[0]["label"]) == ("host", "label")


def test_a_stored_key_is_compared_with_others_and_not_with_itself(server: InProcess) -> None:
    server.publish(build("itself", key_document=_document()))
    assert _nearest(server, _document()) == []
    server.publish(build("other", b"other", key_document=_document(target="trn3")))
    (near,) = _nearest(server, _document())
    assert [difference["path"] for difference in near["differences"]] == ["target"]


def test_keys_of_no_interest_are_left_out(server: InProcess) -> None:
    mine = build("mine", key_document=_document(target="trn3"))
    server.publish(mine)
    assert _nearest(server, _document(), without=[mine.entry.key]) == []


def test_the_same_kind_is_looked_at_first(server: InProcess) -> None:
    server.publish(build("eager", kind=Kind.EAGER, key_document=_document(kind="eager")))
    (near,) = _nearest(server, _document())
    assert [difference["path"] for difference in near["differences"]] == ["kind"]
    server.publish(build("far", b"far", key_document=_document(target="inf2", flags=[])))
    (near,) = _nearest(server, _document())
    assert near["kind"] == "graph"


@pytest.mark.parametrize("document", [{}, {"kind": 3}, {"kind": "graph", "big": 2**70}])
def test_what_is_no_key_document_is_refused(server: InProcess, document: dict[str, Any]) -> None:
    answer = server.call("POST", "/v1/default/explain", json={"key_document": document})
    assert problem(answer) == (422, "invalid")


def test_explaining_needs_the_right_to_read(server: InProcess) -> None:
    answer = server.call("POST", "/v1/default/explain", json={"key_document": _document()}, token=None)
    assert problem(answer) == (401, "unauthorized")
