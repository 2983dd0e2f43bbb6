from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import WireError
from client.explaining import Near, check_asked, differences, nearest, shown
from client.key import key_of
from client.modules import CannotRenderError, module_difference, renderer

_WORDS = st.lists(st.sampled_from(["-O1", "-O2", "--model-type", "transformer", "--lnc=2", "--x", "y"]), max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)
_DOCUMENTS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["graph", "eager"]), "flags": _WORDS | _VALUES},
    optional={"extra": _VALUES, "target": st.sampled_from(["trn1", "trn2"])},
)


@given(_DOCUMENTS, _DOCUMENTS)
def test_two_documents_have_no_difference_exactly_if_they_have_one_key(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    assert (differences(left, right) == ()) == (key_of(left) == key_of(right))


@pytest.mark.parametrize(
    ("stored", "asked", "found"),
    [
        ("-O1", "-O2", [("flags.-O", "-O1", "-O2")]),
        ("-O2", "-O2 --lnc 2", [("flags.--lnc", None, "--lnc 2")]),
        ("--lnc=2 -O2", "-O2", [("flags.--lnc", "--lnc=2", None)]),
        ("--lnc=2", "--lnc 2", [("flags.--lnc", "--lnc=2", "--lnc 2")]),
        ("-O1 -O2", "-O2 -O1", [("flags.-O", "-O1 -O2", "-O2 -O1")]),
        ("--a x --b y", "--b y --a x", [("flags (order)", ["--a", "x", "--b", "y"], ["--b", "y", "--a", "x"])]),
        ("--a x --b y --a z", "--a x --b y --a w", [("flags.--a", "--a x --a z", "--a x --a w")]),
        ("compile --a", "compile --a", []),
    ],
)
def test_flags_are_compared_with_the_values_that_follow_them(
    stored: str, asked: str, found: list[tuple[str, Any, Any]]
) -> None:
    said = differences({"flags": stored.split()}, {"flags": asked.split()})
    assert [(difference.path, difference.stored, difference.asked) for difference in said] == found


def test_numbers_and_booleans_are_not_mixed_up() -> None:
    assert differences({"a": 1}, {"a": True})
    assert differences({"a": None}, {})


def test_another_program_is_further_away_than_one_flag_and_nearer_than_many_changes() -> None:
    asked = {"kind": "graph", "ir": {"sha256": "1"}, "flags": ["-O2"], "target": "trn2", "a": 1, "b": 1, "c": 1}
    stored = {
        "program": {**asked, "ir": {"sha256": "2"}},
        "flag": {**asked, "flags": ["-O1"]},
        "much": {**asked, "a": 2, "b": 2, "c": 2, "target": "trn1"},
        "kind": {**asked, "kind": "eager"},
    }
    entries = [{"key": name, "kind": "graph", "key_document": document} for name, document in stored.items()]
    assert [near.key for near in nearest(entries, asked, limit=9)] == ["flag", "program", "much", "kind"]
    assert [near.key for near in nearest(entries, asked, limit=1)] == ["flag"]


def test_entries_that_cannot_be_compared_are_passed_over() -> None:
    asked = {"kind": "graph"}
    entries: list[dict[str, Any]] = [{}, {"key_document": None}, {"key_document": asked}, {"producer": 3}]
    assert nearest(entries, asked, limit=3) == []


def test_every_part_of_a_key_document_has_a_meaning() -> None:
    document = {
        "schema": 2, "kind": "eager", "ir": {"sha256": "2"}, "compiler": {"version": "2"}, "target": "b",
        "logical_cores": 2, "flags": ["b"], "kernels": ["b"], "extra": {"env": {"A": "2"}, "xla_flags": "b", "o": 1},
    }  # fmt: skip
    other = {
        "schema": 1, "kind": "graph", "ir": {"sha256": "1"}, "compiler": {"version": "1"}, "target": "a",
        "logical_cores": 1, "flags": ["a"], "kernels": ["a"], "extra": {"env": {"A": "1"}, "xla_flags": "a", "o": 2},
    }  # fmt: skip
    found = differences(document, other)
    assert len(found) == 12
    assert all(difference.meaning for difference in found)


def test_what_travels_comes_back_as_it_was() -> None:
    (near,) = nearest([{"key": "k", "kind": "graph", "key_document": {"kind": "a"}}], {"kind": "b"}, limit=1)
    assert Near.from_json(near.to_json()) == near
    for broken in (None, {}, {"differences": [{}]}, {"differences": 3}):
        with pytest.raises(WireError):
            Near.from_json(broken)


def test_what_is_no_key_document_is_refused() -> None:
    for broken in (None, [], {}, {"kind": 1}, {"kind": "graph", "x": 1e400}):
        with pytest.raises(WireError):
            check_asked(broken)


def test_a_long_value_is_cut_for_people() -> None:
    assert len(shown("x" * 10_000)) < 500
    assert shown(None) == "(not there)"
    assert shown(["a", "b"]) == "a b"


def test_a_difference_of_programs_is_bounded() -> None:
    def render(code: bytes) -> str:
        return code.decode()

    assert module_difference(b"a\nb", b"a\nc", render=render)[-2:] == ["-b", "+c"]
    lines = module_difference(b"\n".join([b"x"] * 1000), b"\n".join([b"y" * 5000] * 1000), render=render)
    assert len(lines) == 201
    assert max(map(len, lines)) < 500


def test_a_module_that_cannot_be_rendered_is_said_to_be() -> None:
    def render(_: bytes) -> str:
        raise ValueError("not a module")

    with pytest.raises(CannotRenderError, match="not a module"):
        module_difference(b"a", b"b", render=render)
    with pytest.raises(CannotRenderError, match="pip install"):
        renderer("no-such-output")
