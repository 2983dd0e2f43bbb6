"""Policy is in the store before its caller is told so, and a database that was lost gets it back."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from cache_server.database import policy
from cache_server.services.meta import Meta
from cache_server.stores.base import MetaName, StoreError
from tests.cache_server.harness import problem
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from cache_server.stores.base import Store
    from client.wire import Json
    from tests.cache_server.harness import InProcess


def meta_of(server: InProcess) -> Meta:
    return Meta(server.service.store, server.service.database)


def write(server: InProcess, value: Json | None, row: str = "project.a") -> int:
    with server.service.database.transaction() as session:
        return meta_of(server).write(session, policy.QUOTAS, row, value, project="a")


def stands(server: InProcess, row: str = "project.a") -> Json | None:
    with server.service.database.reading() as connection:
        return policy.value(connection, policy.QUOTAS, row)


def revisions(store: Store) -> dict[int, Json]:
    found = {}
    for name in store.meta():
        raw = store.read_meta(name)
        assert raw is not None
        found[name.revision] = json.loads(raw)
    return found


def forget(server: InProcess) -> None:
    """What a database that was lost and made anew holds."""
    with server.service.database.transaction() as session:
        session.connection().exec_driver_sql("DELETE FROM meta")


def test_every_change_is_a_revision_that_the_store_keeps(either: InProcess) -> None:
    assert [write(either, {"max_bytes": 1}), write(either, {"max_bytes": 2}), write(either, None)] == [1, 2, 3]
    assert stands(either) is None
    found = revisions(either.service.store)
    assert [found[number]["value"] for number in (1, 2, 3)] == [{"max_bytes": 1}, {"max_bytes": 2}, None]
    assert {(line["table"], line["row"], line["project"]) for line in found.values()} == {("quotas", "project.a", "a")}
    assert write(either, {"max_bytes": 3}) == 4


def test_a_lost_database_gets_the_highest_revision_back(either: InProcess) -> None:
    for number in range(12):
        write(either, {"max_bytes": number})
    write(either, {"max_bytes": 5}, "project.b")
    write(either, None, "project.b")
    forget(either)
    assert stands(either) is None
    assert meta_of(either).restore() == 2
    assert stands(either) == {"max_bytes": 11}
    assert stands(either, "project.b") is None
    assert meta_of(either).restore() == 0
    assert write(either, {"max_bytes": 99}) == 13


def test_a_lost_database_that_was_not_rebuilt_overwrites_nothing(server: InProcess) -> None:
    write(server, {"max_bytes": 1})
    write(server, {"max_bytes": 2})
    forget(server)
    assert write(server, {"max_bytes": 3}) == 3
    assert [value["value"]["max_bytes"] for _, value in sorted(revisions(server.service.store).items())] == [1, 2, 3]


def test_a_change_that_the_store_did_not_take_is_no_change(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    write(server, {"max_bytes": 1})

    def fail(*_: object) -> bool:
        raise StoreError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(type(server.service.store), "create_meta", fail)
        answer = server.call("PUT", "/admin/v1/projects/a/quota", json={"max_bytes": 2})
        assert problem(answer) == (503, "store_unavailable")
    assert stands(server) == {"max_bytes": 1}


def test_a_change_that_died_before_its_commit_is_passed(server: InProcess) -> None:
    write(server, {"max_bytes": 1})

    def die() -> None:
        with server.service.database.transaction() as session:
            meta_of(server).write(session, policy.QUOTAS, "project.a", {"max_bytes": 2}, project="a")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        die()
    assert stands(server) == {"max_bytes": 1}
    assert write(server, {"max_bytes": 3}) == 3


def test_a_damaged_revision_is_passed_over_for_the_one_before(server: InProcess) -> None:
    write(server, {"max_bytes": 1})
    store = server.service.store
    for revision, raw in enumerate((b"", b"{", b'{"schema": 2, "value": {}}', b'{"schema": 1, "value": 7}', b"[]"), 2):
        assert store.create_meta(MetaName(policy.QUOTAS, "project.a", revision), raw)
    forget(server)
    assert meta_of(server).restore() == 1
    assert stands(server) == {"max_bytes": 1}
    assert write(server, {"max_bytes": 9}) == 7


def test_changes_at_the_same_time_follow_each_other(either: InProcess) -> None:
    def work(number: int) -> None:
        for step in range(3):
            write(either, {"max_bytes": number * 10 + step})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    found = revisions(either.service.store)
    assert sorted(found) == list(range(1, 13))
    assert stands(either) == found[12]["value"]
