"""Pins: what is pinned is never collected, however little it is worth; and the list of entries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import quote

from cache_server.access import SERVER
from cache_server.database.tokens import public_id
from cache_server.services.tokens import token_hash
from tests.cache_server.growth import DAY, collect, made, pass_time, publish, set_quota, set_rules, standing
from tests.cache_server.harness import TOKEN, build, problem

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.cache_server.harness import Built, FakeClock, InProcess

PINS = "/v1/default/pins"
NAME = f"bootstrap ({public_id(token_hash(TOKEN))})"


def plan_of(*entries: Built) -> bytes:
    return b"".join(json.dumps({"kind": "graph", "key": built.entry.key}).encode() + b"\n" for built in entries)


def pin(server: InProcess, what: str) -> int:
    return server.call("PUT", f"{PINS}/{what}").status_code


def unpin(server: InProcess, what: str) -> int:
    return server.call("DELETE", f"{PINS}/{what}").status_code


def test_pins_of_every_kind_hold_against_every_reason(either: InProcess) -> None:
    entries = {name: made(name, seconds=0.001, version="1.0") for name in ("entry", "plan", "label", "none", "new")}
    object.__setattr__(entries["label"].entry.producer, "label", "llama/70b é")
    for name in ("entry", "plan", "none", "new"):
        object.__setattr__(entries[name].entry, "producer", build("x").entry.producer)
    publish(either, *entries.values())
    publish(either, made("newer", version="2.0"))
    assert pin(either, f"entries/graph/{entries['entry'].entry.key}") == 201
    assert pin(either, f"labels/{quote('llama/70b é', safe='')}") == 201
    assert either.call("PUT", "/v1/default/plans/serve", content=plan_of(entries["plan"])).status_code == 201
    assert pin(either, "plans/serve") == 201
    # a plan that is replaced takes its pin along
    either.call("PUT", "/v1/default/plans/serve", content=plan_of(entries["plan"], entries["new"]))

    set_quota(either, max_entries=0)
    set_rules(either, unused_seconds=DAY, keep_versions=1)
    pass_time(either, 100 * DAY)
    found = collect(either)
    assert (found["state"], found["entries"]) == ("done", 2)
    assert {name: standing(either, built)[0] for name, built in entries.items()} == {
        "entry": True,
        "plan": True,
        "label": True,
        "none": False,
        "new": True,
    }

    assert unpin(either, f"labels/{quote('llama/70b é', safe='')}") == 204
    assert unpin(either, f"entries/graph/{entries['entry'].entry.key}") == 204
    assert unpin(either, "plans/serve") == 204
    assert collect(either)["entries"] == 4
    assert not any(standing(either, *entries.values()))


def test_pinning_twice_and_unpinning_twice_is_said(server: InProcess) -> None:
    built = made("a")
    publish(server, built)
    what = f"entries/graph/{built.entry.key}"
    assert [pin(server, what), pin(server, what)] == [201, 200]
    assert server.call("GET", PINS).json() == {
        "pins": [{"what": "entry", "kind": "graph", "key": built.entry.key, "by": NAME}]
    }
    assert [unpin(server, what), unpin(server, what), pin(server, what)] == [204, 404, 201]


def test_what_is_not_there_cannot_be_pinned(server: InProcess) -> None:
    assert pin(server, f"entries/graph/{'a' * 64}") == 404
    assert pin(server, "plans/nowhere") == 404
    for wrong in (
        f"entries/graphs/{'a' * 64}",
        "entries/graph/xyz",
        "plans/-x",
        f"labels/{'x' * 256}",
        "labels/%00",
    ):
        assert problem(server.call("PUT", f"{PINS}/{wrong}"))[0] in {404, 422}, wrong
    assert server.call("GET", PINS).json() == {"pins": []}


def test_a_pin_set_while_a_collection_runs_counts(
    make_server: Callable[..., InProcess], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(clock=clock)
    entries = [made(name) for name in "abc"]
    publish(server, *entries)
    pass_time(server)
    set_quota(server, max_entries=0)
    collection = server.service.collection
    carry_out = collection._carry_out

    def pin_first(chosen, *others):
        server.service.pins.pin_label("default", "label", by=SERVER)
        return carry_out(chosen, *others)

    monkeypatch.setattr(collection, "_carry_out", pin_first)
    found = collect(server)
    assert (found["entries"], found["spared"]) == (0, 3)
    assert standing(server, *entries) == [True, True, True]


def test_entries_are_listed_page_by_page(server: InProcess) -> None:
    entries = sorted((made(f"e{number}") for number in range(5)), key=lambda built: built.entry.key)
    publish(server, *entries)
    pin(server, f"entries/graph/{entries[0].entry.key}")
    found, cursor, pages = [], None, 0
    while True:
        words = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = server.call("GET", "/v1/default/entries", params=words).json()
        found += page["entries"]
        pages += 1
        cursor = page["next"]
        if cursor is None:
            break
    assert [item["key"] for item in found] == [built.entry.key for built in entries]
    assert pages == 3
    assert [item["pinned"] for item in found] == [True, False, False, False, False]
    first = found[0]
    assert (first["label"], first["compiler"], first["compiler_version"]) == ("label", "neuronx-cc", "2.20.1+ab")
    assert (first["stored_bytes"], first["compile_seconds"], first["hits"], first["last_used"]) == (100, 10.0, 0, None)


def test_entries_are_listed_by_kind_and_label(server: InProcess) -> None:
    one, other = made("a"), made("b")
    object.__setattr__(other.entry, "producer", type(one.entry.producer)("v", "h", "llama"))
    publish(server, one, other)

    def keys(**words: str) -> list[str]:
        return [item["key"] for item in server.call("GET", "/v1/default/entries", params=words).json()["entries"]]

    assert keys(label="llama") == [other.entry.key]
    assert sorted(keys(kind="graph")) == sorted([one.entry.key, other.entry.key])
    assert keys(kind="eager") == []
    assert sorted(keys(compiler_version="2.20.1+ab")) == sorted([one.entry.key, other.entry.key])
    assert keys(compiler_version="2.20.1+ac") == []
    for wrong in ({"kind": "graphs"}, {"limit": "0"}, {"limit": "1001"}, {"cursor": "graph"}, {"cursor": "x/y"}):
        assert problem(server.call("GET", "/v1/default/entries", params=wrong))[0] == 422
