from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import zstandard

from cache_server.database import leases
from client.names import Kind
from client.wire import Entry
from tests.cache_server.harness import build, document, problem, sha256
from tests.fakes.waiting import HANG_SECONDS
from tests.support.s3 import seaweedfs, use_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.address import Address
    from tests.cache_server.harness import FakeClock, InProcess


def test_what_is_published_is_there_for_everybody_and_after_a_restart(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    built = build()
    answer = server.publish(built)
    assert answer.status_code == 201
    assert Entry.from_json(answer.json()) == built.entry
    assert server.files() == sorted(
        f"{built.address.path}/{name}"
        for name in ("entry.json", sha256(built.stored["model.neff"]), sha256(built.stored["compile.log"]))
    )
    server.close()
    again = make_server()
    assert again.call("GET", built.artifact).content == built.stored["model.neff"]
    assert Entry.from_json(again.call("GET", built.path).json()) == built.entry


def test_an_entry_is_invisible_until_all_its_outputs_are_stored(server: InProcess) -> None:
    built = build()
    server.call("PUT", built.blob("model.neff"), content=built.stored["model.neff"])
    answer = server.call("PUT", built.path, json=built.entry.to_json())
    assert problem(answer) == (409, "blob_missing")
    assert "compile.log" in answer.json()["detail"]
    assert server.call("GET", built.artifact).status_code == 404
    assert server.call("GET", built.blob("model.neff")).status_code == 404
    assert not server.entry_path(built).exists()


def test_an_output_of_another_size_than_the_entry_states_counts_as_missing(server: InProcess) -> None:
    built = build(log=None)
    server.upload(built)
    (output,) = built.entry.outputs
    wrong = replace(built.entry, outputs=(replace(output, size=output.size + 1, stored_size=output.size + 1),))
    assert problem(server.call("PUT", built.path, json=wrong.to_json())) == (409, "blob_missing")


def test_the_first_writer_wins_and_the_second_is_told_what_stands(server: InProcess) -> None:
    first, second = build(neff=b"first build"), build(neff=b"another build")
    assert server.publish(first).status_code == 201
    answer = server.publish(second)
    assert answer.status_code == 200
    assert Entry.from_json(answer.json()) == first.entry
    assert server.call("GET", first.artifact).content == b"first build"


def test_publishing_twice_is_no_error(server: InProcess) -> None:
    built = build()
    assert [server.publish(built).status_code for _ in range(2)] == [201, 200]


def test_of_many_writers_at_once_exactly_one_creates_the_entry(server: InProcess) -> None:
    builds = [build(neff=b"build %d" % number, log=None) for number in range(8)]
    for built in builds:
        server.upload(built)
    answers = [server.send("PUT", built.path, json=built.entry.to_json()) for built in builds]
    statuses = sorted(answer.result(HANG_SECONDS).status_code for answer in answers)
    assert statuses == [200] * 7 + [201]
    stored = server.call("GET", builds[0].artifact).content
    assert stored in {built.stored["model.neff"] for built in builds}
    assert {Entry.from_json(answer.result(HANG_SECONDS).json()).output().sha256 for answer in answers} == {
        sha256(stored)
    }


def test_a_key_that_is_not_the_hash_of_its_document_is_refused(server: InProcess) -> None:
    built = build("a", log=None)
    server.upload(built)
    poisoned = replace(built.entry, key_document=document("b"))
    assert problem(server.call("PUT", built.path, json=poisoned.to_json())) == (422, "wrong_key")
    assert server.call("GET", built.artifact).status_code == 404


def _output(name: str, digest: str = "0" * 64) -> dict[str, object]:
    return {"name": name, "sha256": digest, "size": 1, "encoding": "identity", "stored_size": 1}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"project": "other"}, "invalid"),
        ({"key": "0" * 64}, "invalid"),
        ({"kind": "eager"}, "invalid"),
        ({"schema": 2}, "invalid"),
        ({"key_document": None}, "invalid"),
        ({"key_document": {"schema": 1, "kind": "eager"}}, "wrong_key"),
        ({"key_document": {"schema": 1, "kind": "graph", "x": 1 << 60}}, "wrong_key"),
        ({"key_document": {"schema": 1, "kind": "graph", "x": "\ud800"}}, "invalid"),
        ({"outputs": []}, "invalid"),
        ({"outputs": [_output("../model.neff")]}, "invalid"),
        ({"outputs": [_output("other.bin")]}, "invalid"),
        ({"outputs": [_output("model.neff", "../" * 21 + "0")]}, "invalid"),
        ({"compile_seconds": -1}, "invalid"),
        ({"created": 5}, "invalid"),
        ({"signature": {"value": float("nan")}}, "invalid"),
        ({"producer": {"version": "v", "host": "h", "label": "\ud800"}}, "invalid"),
        ({"producer": {"version": "\ud800", "host": "h"}}, "invalid"),
    ],
)
def test_an_entry_that_breaks_the_contract_is_refused_with_its_reason(
    server: InProcess, change: dict[str, object], name: str
) -> None:
    built = build(log=None)
    server.upload(built)
    body = json.dumps({**built.entry.to_json(), **change})
    answer = server.call("PUT", built.path, content=body, headers={"Content-Type": "application/json"})
    assert problem(answer) == (422, name)
    assert not server.entry_path(built).exists()


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b"[" * 100_000, b'{"a":' * 20_000, b"\xff\xfe"])
def test_a_body_that_is_no_entry_is_refused(server: InProcess, body: bytes) -> None:
    built = build()
    answer = server.call("PUT", built.path, content=body, headers={"Content-Type": "application/json"})
    assert problem(answer) == (422, "invalid")


def _foreign(**document: object) -> dict[str, object]:
    return {
        "schema": 1,
        "kind": "foreign",
        "layout": "npc",
        "name": "neuronxcc-2.27.5334.0+f702b353/MODULE_17.main+abcdef01",
        "compiler_version": "2.27.5334.0+f702b353",
        "target": "trn2",
        **document,
    }


def test_a_foreign_entry_is_kept_under_its_own_name(server: InProcess) -> None:
    built = build(kind=Kind.FOREIGN, key_document=_foreign())
    assert server.publish(built).status_code == 201


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "unknown"},
        {"layout": "torchneuron"},
        {"name": "neuronxcc-2.0/../../../etc/MODULE_1+abcdef01"},
        {"name": "neuronxcc-2.0/MODULE_1+abcdef01/x"},
        {"name": "neuronxcc-2.0/MODULE_1+abcdef01\n"},
        {"name": 3},
        {"target": None},
    ],
)
def test_a_foreign_name_that_could_leave_its_folder_is_refused(server: InProcess, change: dict[str, object]) -> None:
    built = build(kind=Kind.FOREIGN, key_document=_foreign(**change))
    assert problem(server.publish(built)) == (422, "invalid")


def test_a_lease_never_ends_before_its_entry_is_durable(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build()
    seen: list[tuple[str, bool]] = []
    create = server.service.store.create_entry

    def watched(address: Address, data: bytes) -> bool:
        with server.service.database.reading() as connection:
            seen.append(("before", leases.running(connection, address, time.time()) is not None))
            created = create(address, data)
            seen.append(("after", leases.running(connection, address, time.time()) is not None))
        return created

    monkeypatch.setattr(server.service.store, "create_entry", watched)
    server.ask(built)
    assert server.publish(built).status_code == 201
    assert seen == [("before", True), ("after", True)]
    with server.service.database.reading() as connection:
        assert leases.running(connection, built.address, time.time()) is None


def test_a_crash_between_store_and_database_loses_nothing(
    make_server: Callable[..., InProcess], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(clock=clock)
    built = build()
    server.upload(built)
    held = server.ask(built)

    def fail(*_: object, **__: object) -> None:
        raise OSError("the machine stopped here")

    monkeypatch.setattr("cache_server.services.publishing.leases.end", fail)
    assert problem(server.call("PUT", built.path, json=built.entry.to_json())) == (500, "internal")
    server.close()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(server.folder / "config"))
    again = make_server(clock=clock)
    assert again.ask(built)["state"] == "wait"
    clock.now += 31
    # nobody compiles again: the entry is found in the store
    assert again.ask(built)["state"] == "ready"
    # the publisher, told of an error, publishes again: that ends its lease
    assert again.publish(built).status_code == 200
    assert again.call("PATCH", built.lease, json={"token": held["token"]}).status_code == 409


NEFF = bytes(range(256)) * 40
FRAMES = {
    "a frame that states its size": zstandard.ZstdCompressor().compress(NEFF),
    "a frame that does not": zstandard.ZstdCompressor(write_content_size=False).compress(NEFF),
}


@pytest.fixture(params=["local", "s3"])
def any_store(
    request: pytest.FixtureRequest, make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> InProcess:
    if request.param == "local":
        return make_server()
    use_credentials(monkeypatch)
    return make_server(store=seaweedfs().new_url())


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("kind", [Kind.GRAPH, Kind.FOREIGN])
def test_an_entry_states_the_plain_sizes_that_were_uploaded(any_store: InProcess, frame: bytes, kind: Kind) -> None:
    """One that does not would be published, and then answered 503 to everybody until somebody suspects it."""
    name = "neuronxcc-2.27/MODULE_1+0123abcd"
    foreign = {"schema": 1, "kind": "foreign", "layout": "npc", "name": name, "compiler_version": "2", "target": "trn2"}
    built = build(neff=NEFF, packed=frame, kind=kind, key_document=foreign if kind is Kind.FOREIGN else None)
    any_store.upload(built)
    main, log = built.entry.outputs
    for size in (0, 5, len(NEFF) - 1, len(NEFF) + 1, 10**9):
        lie = replace(built.entry, outputs=(replace(main, size=size), log))
        answer = any_store.call("PUT", built.path, json=lie.to_json())
        assert problem(answer) == (422, "invalid")
        assert f"model.neff is {size} bytes without its encoding" in answer.json()["detail"]
    both = replace(built.entry, outputs=(replace(main, size=5, stored_size=main.stored_size + 1), log))
    assert problem(any_store.call("PUT", built.path, json=both.to_json())) == (409, "blob_missing")
    assert any_store.ask(built)["state"] == "granted" if kind is not Kind.FOREIGN else True
    assert any_store.call("PUT", built.path, json=built.entry.to_json()).status_code == 201
    assert any_store.call("GET", built.artifact).content == NEFF


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_an_entry_with_another_plain_size_is_not_adopted_from_the_store(server: InProcess, frame: bytes) -> None:
    built = build(neff=NEFF, packed=frame, log=None)
    server.upload(built)
    (main,) = built.entry.outputs
    lie = replace(built.entry, outputs=(replace(main, size=5),))
    server.entry_path(built).write_text(json.dumps(lie.to_json()))
    server.service.sweeping.sweep()
    assert server.call("GET", built.artifact).status_code == 404
    assert any(name.startswith("quarantine/") for name in server.files())
    assert server.ask(built)["state"] == "granted"
