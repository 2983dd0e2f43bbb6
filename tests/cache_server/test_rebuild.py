"""The database is deleted: no entry, pin or quota may be lost, and nothing may be collected until somebody looked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cache_server import maintenance
from cache_server.services.fsck import Fsck
from cache_server.settings import Settings
from client.errors import ConfigurationError
from client.names import MAIN_OUTPUT
from tests.cache_server.harness import FakeClock, build

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cache_server.harness import InProcess

pytestmark = pytest.mark.once


def _lose_database(server: InProcess) -> Path:
    folder = server.service.settings.data_dir
    server.close()
    for path in folder.glob("cache.db*"):
        path.unlink()
    return folder


def _policy(server: InProcess) -> dict[str, Any]:
    found = server.call("GET", "/admin/v1/policy").json()
    return {name: value for name, value in found.items() if name != "collection_paused"}


def _pins(server: InProcess) -> Any:
    return server.call("GET", "/v1/default/pins").json()


def _with_policy(server: InProcess) -> None:
    for name in ("a", "b", "c"):
        server.publish(build(name))
    assert server.call("PUT", f"/v1/default/pins/entries/graph/{build('a').entry.key}").status_code == 201
    assert server.call("PUT", "/v1/default/pins/labels/llama").status_code == 201
    assert server.call("PUT", "/v1/default/pins/labels/gone").status_code == 201
    assert server.call("DELETE", "/v1/default/pins/labels/gone").status_code == 204
    for limit in (10, 20):
        answer = server.call("PUT", "/admin/v1/projects/default/quota", json={"max_entries": limit})
        assert answer.status_code in {200, 201, 204}, answer.text


def test_no_entry_pin_or_quota_is_lost_with_the_database(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    _with_policy(server)
    policy, pins = _policy(server), _pins(server)
    assert len(pins["pins"]) == 2
    folder = _lose_database(server)

    done = maintenance.rebuild(Settings(data_dir=folder))
    assert (done.adopted, done.known, done.set_aside, done.unreadable) == (3, 0, 0, 0)
    again = make_server()
    for name in ("a", "b", "c"):
        built = build(name)
        assert again.call("GET", built.artifact).content == built.stored[MAIN_OUTPUT]
        assert again.call("GET", built.path).json() == built.entry.to_json()
    assert _policy(again) == policy
    assert _pins(again) == pins
    assert Fsck(again.service.store, again.service.database, orphan_seconds=86400, deep=True).run().findings == []


@pytest.mark.parametrize("how", ["rebuild-index", "start"])
def test_nothing_is_collected_after_the_loss_until_an_operator_says_so(
    server: InProcess, make_server: Callable[..., InProcess], how: str
) -> None:
    _with_policy(server)
    folder = _lose_database(server)
    if how == "rebuild-index":
        maintenance.rebuild(Settings(data_dir=folder))
    again = make_server()
    again.service.sweeping.sweep()
    paused = again.call("GET", "/admin/v1/policy").json()["collection_paused"]
    assert "resume" in paused["reason"]
    assert len(_pins(again)["pins"]) == 2
    # a restart is not an operator
    again.close()
    third = make_server()
    assert third.service.collection.paused() is not None
    assert third.call("POST", "/admin/v1/collection/resume").status_code == 204
    assert third.service.collection.paused() is None


def test_a_first_start_is_no_loss(server: InProcess) -> None:
    assert server.service.collection.paused() is None
    assert server.files() == []


def test_rebuilding_twice_or_beside_known_entries_changes_nothing(server: InProcess) -> None:
    _with_policy(server)
    service = server.service
    before = server.files()
    done = service.rebuilding.rebuild()
    assert (done.adopted, done.known, done.set_aside) == (0, 3, 0)
    assert [name for name in server.files() if not name.startswith("meta/")] == [
        name for name in before if not name.startswith("meta/")
    ]


def test_leases_granted_after_the_loss_are_above_every_earlier_one(
    make_server: Callable[..., InProcess],
) -> None:
    clock = FakeClock()
    server = make_server(clock=clock)
    built = build()
    generations = []
    for _ in range(3):
        granted = server.ask(built)
        generations.append(granted["generation"])
        server.call("POST", f"{built.lease}/release", json={"token": granted["token"]})
    clock.now += 1
    folder = _lose_database(server)
    maintenance.rebuild(Settings(data_dir=folder))
    again = make_server(clock=clock)
    assert again.ask(built)["generation"] > max(generations)


def test_what_means_nothing_is_set_aside_and_what_cannot_be_read_is_left(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    sound, torn, unreadable = build("sound"), build("torn"), build("unreadable")
    for built in (sound, torn, unreadable):
        server.publish(built)
    for built in (torn, unreadable):
        server.entry_path(built).unlink()
    server.entry_path(torn).write_bytes(b"{")
    server.entry_path(unreadable).symlink_to("entry.json")
    folder = _lose_database(server)
    done = maintenance.rebuild(Settings(data_dir=folder))
    assert (done.adopted, done.set_aside, done.unreadable) == (1, 1, 1)
    again = make_server()
    assert again.call("GET", sound.artifact).status_code == 200
    assert again.ask(torn)["state"] == "granted"
    assert again.entry_path(unreadable).is_symlink()


def test_an_older_revision_is_not_resurrected(server: InProcess, make_server: Callable[..., InProcess]) -> None:
    _with_policy(server)
    folder = _lose_database(server)
    (newest,) = {path.parent for path in folder.rglob("meta/pins/*/*.json") if b"gone" in path.read_bytes()}
    values = [json.loads(path.read_bytes())["value"] for path in sorted(newest.iterdir())]
    assert values[-1] is None
    maintenance.rebuild(Settings(data_dir=folder))
    again = make_server()
    assert "gone" not in json.dumps(_pins(again))


def test_a_running_server_is_not_pulled_from_under(server: InProcess) -> None:
    with pytest.raises(ConfigurationError, match="another neff-cache server"):
        maintenance.rebuild(Settings(data_dir=server.service.settings.data_dir))
