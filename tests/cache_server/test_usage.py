"""Uses of entries: counted without delay to readers, added up over servers, lost at most with the last second."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import OperationalError

from cache_server.collection_rules import HALF_LIFE, score, weight
from cache_server.database import usage
from cache_server.services.usage import Usage
from tests.cache_server.growth import made, pass_time, publish
from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.collection_rules import Candidate
    from tests.cache_server.harness import Built, InProcess

pytestmark = pytest.mark.once


def used(server: InProcess, built: Built) -> Candidate:
    with server.service.database.reading() as connection:
        found = usage.candidate(connection, built.address)
    assert found is not None
    return found


def test_a_hit_is_counted_and_a_look_is_not(either: InProcess) -> None:
    built = made("a")
    publish(either, built)
    either.call("HEAD", built.artifact)
    either.call("GET", build("absent").artifact)
    assert either.service.usage.flush() == 0
    pass_time(either, 50)
    for _ in range(3):
        assert either.call("GET", built.artifact).status_code == 200
    assert used(either, built).hits == 0, "nothing is written while a reader waits"
    assert either.service.usage.flush() == 1
    found = used(either, built)
    assert (found.hits, found.last_used) == (3, either.service.database._clock(None))  # type: ignore[arg-type]


def test_servers_add_to_each_other(either: InProcess) -> None:
    built, other = made("a"), made("b")
    publish(either, built, other)
    servers = [Usage(either.service.database) for _ in range(4)]

    def work(one: Usage) -> None:
        for _ in range(5):
            for entry in (built, other, built):
                one.note(entry.address)
            one.flush()

    threads = [threading.Thread(target=work, args=(one,)) for one in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert (used(either, built).hits, used(either, other).hits) == (40, 20)


def test_heat_is_the_same_in_whatever_order_uses_are_written(either: InProcess) -> None:
    now = either.service.database._clock(None)  # type: ignore[arg-type]
    first, second = made("a"), made("b")
    publish(either, first, second)
    times = [now, now - HALF_LIFE, now - 3 * HALF_LIFE]
    for built, order in ((first, times), (second, times[::-1])):
        for time in order:
            with either.service.database.transaction() as session:
                usage.add(session, {("default", "graph", built.entry.key): 1}, time)
    assert used(either, first).heat == pytest.approx(used(either, second).heat)
    assert used(either, first).last_used == now
    assert used(either, first).heat / weight(now) == pytest.approx(1 + 1 / 2 + 1 / 8)
    assert score(used(either, first), now) == pytest.approx(10 * (1 + 1 + 1 / 2 + 1 / 8) / 100)


def test_uses_of_a_removed_entry_are_forgotten(either: InProcess) -> None:
    built = made("a")
    publish(either, built)
    either.call("GET", built.artifact)
    either.service.usage.flush()
    either.call("DELETE", built.path)
    publish(either, built)
    assert used(either, built).hits == 0
    # and one that was written after its entry went
    other = made("b")
    either.service.usage.note(other.address)
    either.service.usage.flush()
    with either.service.database.transaction() as session:
        usage.tidy(session, either.service.database.now(session))
    with either.service.database.reading() as connection:
        assert usage.hits_by_namespace(connection) == {}


def test_a_walk_sees_every_entry_once_whatever_its_page(either: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [made(f"e{number}", project=project) for number in range(7) for project in ("a-b", "a", "b")]
    publish(either, *entries)
    for size in (1, 2, 21, 100):
        monkeypatch.setattr(usage, "PAGE", size)
        with either.service.database.reading() as connection:
            names = [found.named for found in usage.walk(connection)]
            of_one = [found.named for found in usage.walk(connection, "a")]
        assert len(names) == len(set(names)) == 21
        assert [name for name in names if name[0] == "a"] == of_one


def test_uses_on_nodes_that_a_job_reports_at_its_end_count(either: InProcess) -> None:
    built = made("a")
    publish(either, built)
    body = {"by_kind": {}, "keys": [built.entry.key, "f" * 64]}
    assert either.call("POST", "/v1/default/reports", json=body).status_code == 204
    either.call("POST", "/v1/default/fetch", json={"keys": [{"kind": "graph", "key": built.entry.key}]})
    assert either.service.usage.flush() == 1
    assert used(either, built).hits == 2


def test_uses_outlive_a_database_that_does_not_answer(
    make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    built = made("a")
    publish(server, built)
    server.call("GET", built.artifact)

    def fail(*_: object) -> None:
        raise OperationalError("INSERT", {}, RuntimeError("gone"))

    with monkeypatch.context() as patch:
        patch.setattr(usage, "add", fail)
        with pytest.raises(OperationalError):
            server.service.usage.flush()
    server.call("GET", built.artifact)
    assert server.service.usage.flush() == 1
    assert used(server, built).hits == 2


def test_uses_are_written_every_second_and_at_the_end(make_server: Callable[..., InProcess]) -> None:
    server = make_server()
    built = made("a")
    publish(server, built)
    writing = server.start(server.service.usage.keep_writing(0.01, server.service.workers))
    server.call("GET", built.artifact)

    async def until_written() -> None:
        async with asyncio.timeout(10):
            while used(server, built).hits < 1:  # noqa: ASYNC110 - the server has no event for tests
                await asyncio.sleep(0.01)

    server.run(until_written())
    writing.cancel()
    server.call("GET", built.artifact)
    server.close()
    again = make_server()
    assert used(again, built).hits == 2


def test_what_is_noted_while_nothing_can_be_written_has_a_bound(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_server.services.usage._MOST_NOTED", 2)
    entries = [made(name) for name in "abc"]
    for built in (*entries, entries[0]):
        server.service.usage.note(built.address)
    noted = [server.service.usage.is_noted(("default", "graph", built.entry.key)) for built in entries]
    assert noted == [True, True, False]
    assert server.service.usage.flush() == 2
