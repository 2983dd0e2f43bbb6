"""What ends a lease on one server wakes those who wait on another, whatever happens to the connection between them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from sqlalchemy import make_url

from cache_server.database import entries
from cache_server.database.engine import Database
from cache_server.database.migrate import migrate
from cache_server.database.models import LeaseRow, LeaseState
from cache_server.services.postgres_waiting import CHANNEL, PostgresWaiters
from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS
from tests.support.postgres import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from cache_server.services.waiting import Waiter

BUILT = build()
LISTEN = f"LISTEN {CHANNEL}"
FAR = 3600.0
"""A poll that never comes: only a notification wakes."""


@pytest.fixture
def database() -> Iterator[Database]:
    with postgres().new_database() as url:
        database = Database(make_url(url), connections=4)
        migrate(database)
        yield database
        database.close()


@pytest.fixture
def make_waiters(database: Database) -> Iterator[Callable[..., PostgresWaiters]]:
    made: list[PostgresWaiters] = []

    def make(poll_seconds: float = FAR) -> PostgresWaiters:
        waiters = PostgresWaiters(database, poll_seconds=poll_seconds, draw=lambda: 0.5)
        waiters.start()
        made.append(waiters)
        listening(database, len(made))
        return waiters

    yield make
    for waiters in made:
        waiters.stop()


def listening(database: Database, count: int) -> None:
    """Return once so many connections listen."""
    for _ in range(1000):
        # its last statement is the first, or since a poll the one that sees whether the server takes writes
        found = [pid for query in (LISTEN, "SHOW%") for pid in postgres().servers(str(database.url), query=query)]
        if len(found) == count:
            return
        threading.Event().wait(0.01)
    pytest.fail(f"{len(found)} connections listen, not {count}")


def hold(database: Database, *, until: float = 4e9) -> None:
    """Let somebody compile the key."""
    address = BUILT.address
    with database.transaction() as session:
        session.add(
            LeaseRow(
                project=address.project,
                kind=str(address.kind),
                key=address.key,
                generation=1,
                state=LeaseState.HELD,
                token_hash="",
                holder="{}",
                since=0.0,
                expires=until,
            )
        )


def publish(database: Database, server: PostgresWaiters) -> None:
    """Do what a publish on ``server`` does to the database."""
    with database.transaction() as session:
        entries.insert(session, BUILT.entry, now=1.0, checked=0.0)
        server.announce(session, BUILT.address)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


async def woken(waiter: Waiter) -> bool:
    return await waiter.wait(HANG_SECONDS)


def test_a_publish_on_one_server_hands_the_entry_to_those_who_wait_on_another(
    database: Database, make_waiters: Callable[..., PostgresWaiters]
) -> None:
    here, there = make_waiters(), make_waiters()

    async def wait() -> None:
        places = [here.place(address) for address in (BUILT.address, BUILT.address, build("other").address)]
        async with places[0] as first, places[1] as second, places[2] as other:
            await asyncio.to_thread(publish, database, there)
            assert await woken(first)
            assert await woken(second)
            assert first.entry == second.entry == BUILT.entry
            assert not await other.wait(0)

    run(wait())


def test_a_lease_that_was_given_back_wakes_those_who_wait_elsewhere(
    database: Database, make_waiters: Callable[..., PostgresWaiters]
) -> None:
    here, there = make_waiters(), make_waiters()

    async def wait() -> None:
        async with here.place(BUILT.address) as waiter:
            with database.transaction() as session:
                there.announce(session, BUILT.address)
            assert await woken(waiter)
            assert waiter.entry is None

    run(wait())


def test_what_is_rolled_back_wakes_nobody(database: Database, make_waiters: Callable[..., PostgresWaiters]) -> None:
    here, there = make_waiters(), make_waiters()
    marker = build("marker").address

    async def wait() -> None:
        async with here.place(BUILT.address) as waiter, here.place(marker) as after:
            with pytest.raises(ZeroDivisionError), database.transaction() as session:  # noqa: PT012 - rolled back
                there.announce(session, BUILT.address)
                raise ZeroDivisionError
            with database.transaction() as session:
                there.announce(session, marker)
            # notifications come in order: the one before would have come before
            assert await woken(after)
            assert not await waiter.wait(0)

    run(wait())


def test_a_wake_up_that_was_lost_with_its_connection_is_made_up_for(
    database: Database, make_waiters: Callable[..., PostgresWaiters]
) -> None:
    here, there = make_waiters(), make_waiters()

    async def wait() -> None:
        async with here.place(BUILT.address) as waiter:
            hold(database)
            await asyncio.to_thread(postgres().disconnect, str(database.url), query=LISTEN)
            # may be sent before anybody listens again
            await asyncio.to_thread(publish, database, there)
            assert await woken(waiter)
            assert waiter.entry == BUILT.entry

    run(wait())
    listening(database, 2)


def test_a_wake_up_that_was_never_sent_is_made_up_for_by_the_poll(
    database: Database, make_waiters: Callable[..., PostgresWaiters]
) -> None:
    here = make_waiters(poll_seconds=0.05)
    hold(database)

    async def wait() -> None:
        async with here.place(BUILT.address) as waiter, here.place(build("free").address) as free:
            assert await woken(free), "nobody compiles this key: there is nothing to wait for"
            assert not await waiter.wait(0), "somebody compiles this one"
            with database.transaction() as session:
                entries.insert(session, BUILT.entry, now=1.0, checked=0.0)
            assert await woken(waiter)
            assert waiter.entry == BUILT.entry

    run(wait())


def test_a_server_does_not_hear_itself(database: Database, make_waiters: Callable[..., PostgresWaiters]) -> None:
    here, there = make_waiters(), make_waiters()
    marker = build("marker").address

    async def wait() -> None:
        async with here.place(BUILT.address) as waiter, here.place(marker) as after:
            for server, address in ((here, BUILT.address), (there, marker)):
                with database.transaction() as session:
                    server.announce(session, address)
            assert await woken(after)
            assert not await waiter.wait(0)

    run(wait())


def test_a_notification_that_is_none_of_ours_does_not_deafen_a_server(
    database: Database, make_waiters: Callable[..., PostgresWaiters]
) -> None:
    here, there = make_waiters(), make_waiters()

    async def wait() -> None:
        async with here.place(BUILT.address) as waiter:
            for payload in ("", "x", "x a/b/c", "x default/graph/" + "z" * 64):
                postgres().execute(f"NOTIFY {CHANNEL}, '{payload}'", database=database.url.database or "")
            await asyncio.to_thread(publish, database, there)
            assert await woken(waiter)

    with structlog.testing.capture_logs():
        run(wait())


def test_stopping_ends_thread_and_connection_at_once(
    database: Database, make_waiters: Callable[..., PostgresWaiters]
) -> None:
    waiters = PostgresWaiters(database, poll_seconds=FAR)
    waiters.start()
    listening(database, 1)
    waiters.stop()
    assert not waiters._thread.is_alive()
    listening(database, 0)
