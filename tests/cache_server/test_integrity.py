"""What becomes of entries when disk or database lie: damage, loss, crashes in the middle."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from cache_server.database import entries
from cache_server.database.models import EntryState
from cache_server.stores.base import Blob
from client.names import MAIN_OUTPUT
from client.wire import Entry
from tests.cache_server.harness import build, problem, sha256

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import Built, InProcess

pytestmark = pytest.mark.once

DAY = 86400


def _suspect(server: InProcess, built: Built, name: str = MAIN_OUTPUT) -> Any:
    output = built.entry.output(name)
    assert output is not None
    return server.call("POST", f"{built.path}/suspect", json={"sha256": output.sha256})


def _damage(server: InProcess, built: Built, name: str = MAIN_OUTPUT) -> bytes:
    """Flip a byte of an output where it is stored; the file is another one, as after a repair of the disk."""
    path = server.output_path(built, name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.unlink()
    path.write_bytes(data)
    return bytes(data)


def _lose_database(server: InProcess) -> None:
    server.close()
    for path in (server.folder / "data").glob("cache.db*"):
        path.unlink()


def _age(server: InProcess, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(server.store_root / name, (then, then))


def _unwanted(server: InProcess, built: Built, data: bytes = b"abandoned") -> str:
    """Upload an output that no entry will name; return its path in the store."""
    server.call("PUT", f"{built.path}/blobs/{sha256(data)}", content=data)
    return f"{built.address.path}/{sha256(data)}"


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_output_is_set_aside_and_its_key_is_free_again(server: InProcess, *, packed: bool) -> None:
    plain = os.urandom(5000) * 2
    frame = zstandard.ZstdCompressor().compress(plain) if packed else None
    built, other = build("a", plain, packed=frame), build("b")
    for each in (built, other):
        server.publish(each)
    damaged = _damage(server, built)
    assert _suspect(server, built).json() == {"state": "quarantined"}
    assert server.call("GET", built.artifact).status_code == 404

    (kept,) = {os.path.dirname(name) for name in server.files() if name.startswith("quarantine/")}  # noqa: PTH120
    assert kept.startswith(f"quarantine/default/graph/{built.entry.key}/")
    folder = server.store_root / kept
    assert {path.name for path in folder.iterdir()} == {"entry.json", server.output_path(built).name}
    assert (folder / server.output_path(built).name).read_bytes() == damaged
    assert Entry.from_json(json.loads((folder / "entry.json").read_bytes())) == built.entry
    assert not server.entry_path(built).parent.exists()

    assert server.call("GET", other.artifact).content == other.stored[MAIN_OUTPUT]
    assert server.ask(built)["state"] == "granted"
    assert server.publish(built).status_code == 201
    assert server.call("GET", built.artifact).content == plain


def test_a_sound_output_stays_although_a_reader_suspects_it(server: InProcess) -> None:
    built = build()
    server.publish(built)
    assert _suspect(server, built).json() == {"state": "sound"}
    assert server.call("GET", built.artifact).status_code == 200


def test_an_output_is_not_hashed_again_within_a_minute(server: InProcess) -> None:
    now = [0.0]
    server.service.suspicion._monotonic = lambda: now[0]
    built = build()
    server.publish(built)
    assert _suspect(server, built).json() == {"state": "sound"}
    _damage(server, built)
    assert _suspect(server, built).json() == {"state": "sound"}
    now[0] = 61
    assert _suspect(server, built).json() == {"state": "quarantined"}
    # published anew, the earlier verdict says nothing about it
    server.publish(built)
    assert _suspect(server, built).json() == {"state": "sound"}


def test_suspicion_must_name_an_output_of_the_entry(server: InProcess) -> None:
    built = build()
    server.publish(built)
    for digest in ("0" * 64, "x", "../entry.json"):
        answer = server.call("POST", f"{built.path}/suspect", json={"sha256": digest})
        assert problem(answer) == (422, "invalid")
    assert server.call("GET", built.artifact).status_code == 200


def test_suspicion_of_an_absent_entry_is_answered_as_such(server: InProcess) -> None:
    assert _suspect(server, build()).json() == {"state": "absent"}


@pytest.mark.parametrize("part", ["model.neff", "compile.log", "entry.json"])
def test_a_lost_part_is_noticed_by_whoever_asks_for_the_lease(server: InProcess, part: str) -> None:
    built = build()
    server.publish(built)
    path = server.entry_path(built) if part == "entry.json" else server.output_path(built, part)
    path.unlink()
    found = server.ask(built)
    if part == "entry.json":
        # its outputs are whole: it is noticed by the next who takes the key's lock
        assert found["state"] == "ready"
        assert _suspect(server, built).json() == {"state": "quarantined"}
    else:
        assert found["state"] == "granted"
    assert server.publish(built).status_code == 201
    assert server.call("GET", built.artifact).content == built.stored[MAIN_OUTPUT]


def test_a_file_that_cannot_be_read_is_no_verdict(server: InProcess) -> None:
    built = build()
    server.publish(built)
    path = server.output_path(built)
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path.name)
    answer = _suspect(server, built)
    assert problem(answer) == (503, "store_unavailable")
    path.unlink()
    path.write_bytes(content)
    assert server.call("GET", built.artifact).status_code == 200


def test_no_entry_is_lost_with_the_database(server: InProcess, make_server: Callable[..., InProcess]) -> None:
    built = build()
    server.publish(built)
    _lose_database(server)
    again = make_server()
    found = again.ask(built)
    assert found["state"] == "ready"
    assert Entry.from_json(found["entry"]) == built.entry
    assert again.call("GET", built.artifact).content == built.stored[MAIN_OUTPUT]


def test_the_sweep_finds_every_entry_the_database_has_lost(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    every = [build(f"entry {number}") for number in range(5)]
    for built in every:
        server.publish(built)
    _lose_database(server)
    again = make_server()
    again.service.sweeping.sweep()
    for built in every:
        assert again.call("GET", built.artifact).status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 9}', b"[" * 100_000])
def test_an_unreadable_entry_json_never_blocks_its_key(
    server: InProcess, make_server: Callable[..., InProcess], content: bytes
) -> None:
    built = build()
    server.publish(built)
    _lose_database(server)
    path = server.entry_path(built)
    path.unlink()
    path.write_bytes(content)
    again = make_server()
    assert again.ask(built)["state"] == "granted"
    assert again.publish(built).status_code == 201


def test_an_entry_planted_under_another_key_is_not_adopted(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    good, victim = build("good"), build("victim")
    server.publish(good)
    _lose_database(server)
    planted = server.entry_path(victim).parent
    planted.mkdir(parents=True)
    for path in server.entry_path(good).parent.iterdir():
        (planted / path.name).write_bytes(path.read_bytes())
    again = make_server()
    assert again.ask(victim)["state"] == "granted"
    assert again.call("GET", victim.artifact).status_code == 404


@pytest.mark.parametrize("state", [EntryState.DELETING, EntryState.QUARANTINED])
@pytest.mark.parametrize("moment", ["start", "lease", "publish", "sweep"])
def test_a_removal_that_a_crash_cut_short_is_finished_first(
    server: InProcess, make_server: Callable[..., InProcess], state: EntryState, moment: str
) -> None:
    built = build()
    server.publish(built)
    with server.service.database.transaction() as session:
        assert entries.mark(session, built.address, state)
    assert server.call("GET", built.artifact).status_code == 404
    if moment == "start":
        server.close()
        server = make_server()
        assert not server.entry_path(built).exists()
    elif moment == "sweep":
        server.service.sweeping.sweep()
        assert not server.entry_path(built).exists()
    elif moment == "lease":
        assert server.ask(built)["state"] == "granted"
        assert not server.entry_path(built).exists()
    # the outputs went with the entry, so the publisher uploads them again
    assert server.call("PUT", built.path, json=built.entry.to_json()).status_code == 409
    assert server.publish(built).status_code == 201
    assert any(name.startswith("quarantine/") for name in server.files()) == (state is EntryState.QUARANTINED)


def test_delete_takes_everything_and_frees_the_key(server: InProcess) -> None:
    built = build()
    server.publish(built)
    assert server.call("DELETE", built.path).status_code == 204
    assert server.files() == []
    assert problem(server.call("DELETE", built.path)) == (404, "not_found")
    assert server.publish(build(neff=b"another build")).status_code == 201


def test_delete_reaches_an_entry_that_the_database_has_lost(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    built = build()
    server.publish(built)
    _lose_database(server)
    again = make_server()
    assert again.call("DELETE", f"{built.path}?reason=poisoned").status_code == 204
    assert again.files() == []
    assert len(again.call("GET", "/v1/default/revoked").json()["revoked"]) == 1


def test_a_poisoned_entry_is_named_to_clients_for_ninety_days(
    make_server: Callable[..., InProcess], clock: Any
) -> None:
    server = make_server(clock=clock)
    poisoned, plain = build("poisoned"), build("plain")
    for built in (poisoned, plain):
        server.publish(built)
    server.call("DELETE", f"{poisoned.path}?reason=poisoned")
    server.call("DELETE", plain.path)
    (found,) = server.call("GET", "/v1/default/revoked").json()["revoked"]
    assert found == {
        "kind": "graph",
        "key": poisoned.entry.key,
        "sha256": sha256(poisoned.stored[MAIN_OUTPUT]),
        "time": "2027-01-15T08:00:00Z",
    }
    assert server.call("GET", "/v1/other/revoked").json() == {"revoked": []}
    clock.now += 91 * DAY
    assert server.call("GET", "/v1/default/revoked").json() == {"revoked": []}


def test_the_sweep_removes_old_outputs_without_an_entry_and_nothing_else(server: InProcess) -> None:
    built, unpublished = build("a"), build("b")
    server.publish(built)
    old = _unwanted(server, built, b"old")
    young = _unwanted(server, built, b"young")
    alone = _unwanted(server, unpublished, b"alone")
    for name in (old, alone, *(name for name in server.files() if "entry.json" in name)):
        _age(server, name, DAY + 60)
    assert server.service.sweeping.sweep() == 2
    kept = server.files()
    assert old not in kept
    assert alone not in kept
    assert young in kept
    assert not server.entry_path(unpublished).parent.exists()
    assert server.call("GET", built.artifact).status_code == 200


def test_a_publisher_learns_what_the_sweep_took(server: InProcess) -> None:
    built = build()
    server.upload(built)
    for name in server.files():
        _age(server, name, DAY + 60)
    assert server.service.sweeping.sweep() == 2
    assert problem(server.call("PUT", built.path, json=built.entry.to_json())) == (409, "blob_missing")
    assert server.publish(built).status_code == 201


def test_quarantined_entries_are_kept_for_a_week(server: InProcess) -> None:
    built = build()
    server.publish(built)
    _damage(server, built)
    _suspect(server, built)
    server.service.sweeping.sweep()
    assert any(name.startswith("quarantine/") for name in server.files())
    for name in {os.path.dirname(name) for name in server.files()}:  # noqa: PTH120
        _age(server, name, 8 * DAY)
    server.service.sweeping.sweep()
    assert server.files() == []


def test_uploads_that_a_crash_left_are_gone_after_a_restart(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    built = build()
    upload = server.service.store.begin_upload(Blob.of(built.address, built.entry.outputs[0]))
    upload.write(b"half of it")
    assert len(server.files()) == 1
    server.close()
    again = make_server()
    assert again.files() == []
    upload.abort()


def test_foreign_files_in_the_store_do_no_harm(server: InProcess) -> None:
    built = build()
    server.publish(built)
    for name in ("lost+found/x/y/z/file", "default/graph/zz/README", "default/graph/no-folder"):
        path = server.store_root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not ours")
    server.service.sweeping.sweep()
    assert server.call("GET", built.artifact).status_code == 200
    assert (server.store_root / "lost+found/x/y/z/file").exists()
