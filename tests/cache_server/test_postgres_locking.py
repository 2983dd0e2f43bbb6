"""What locks in PostgreSQL must hold against: holders that vanish, connections that break, servers that hang."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from cache_server.clock import folder_stamp
from cache_server.database import postgres as connections
from cache_server.errors import Problem
from cache_server.metrics import Metrics
from cache_server.postgres_locking import PostgresDuty, PostgresLocks
from cache_server.stores.base import Blob
from cache_server.stores.guarded import GuardedStore
from cache_server.stores.local import LocalStore
from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS
from tests.support.postgres import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ADDRESS = build().address


@pytest.fixture
def url() -> Iterator[str]:
    with postgres().new_database() as found:
        yield found


@pytest.fixture
def make_locks(url: str) -> Iterator[Callable[..., PostgresLocks]]:
    made: list[PostgresLocks] = []

    def make(**options: Any) -> PostgresLocks:
        made.append(
            PostgresLocks(connections.postgres_url(make_url(url)), **{"timeout": 0.3, "connections": 4, **options})
        )
        return made[-1]

    yield make
    for locks in made:
        locks.close()


def is_free(locks: PostgresLocks) -> bool:
    try:
        with locks.hold(ADDRESS):
            return True
    except Problem as problem:
        if problem.kind.name != "busy":
            raise
        return False


def test_a_key_is_held_by_one_server_at_a_time(make_locks: Callable[..., PostgresLocks]) -> None:
    first, second = make_locks(), make_locks()
    with first.hold(ADDRESS):
        assert not is_free(second)
        with second.hold(build("other").address):
            pass
    assert is_free(second)


def test_the_lock_of_a_server_that_lost_its_connection_is_free_and_the_server_is_told(
    make_locks: Callable[..., PostgresLocks], url: str
) -> None:
    first, second = make_locks(), make_locks()
    with pytest.raises(SQLAlchemyError), first.hold(ADDRESS):  # noqa: PT012 - raised at the end of the hold
        first.check()
        postgres().disconnect(url)
        assert is_free(second)
    # and it goes on with a new connection
    assert is_free(first)


def test_a_server_that_lost_its_lock_takes_nothing_away_from_the_next_holder(
    make_locks: Callable[..., PostgresLocks], url: str, tmp_path: Path
) -> None:
    built = build()
    first, second = make_locks(), make_locks()
    local = LocalStore(tmp_path)
    local.open()
    store = GuardedStore(local, Metrics(), first)
    with pytest.raises(SQLAlchemyError), first.hold(ADDRESS):  # noqa: PT012 - raised at the end of the hold
        assert store.create_entry(ADDRESS, b"old")
        store.set_aside(ADDRESS, ["entry.json"], folder_stamp(1))
        postgres().disconnect(url)
        with second.hold(ADDRESS):
            local.remove(ADDRESS, "entry.json")
            assert local.create_entry(ADDRESS, b"the next holder's")
        for harm in (
            lambda: store.remove(ADDRESS, "entry.json"),
            lambda: store.create_entry(ADDRESS, b"old"),
            lambda: store.set_aside(ADDRESS, ["entry.json"], folder_stamp(2)),
        ):
            with pytest.raises(SQLAlchemyError):
                harm()
        # uploads and reads take no lock, and are nobody's harm
        assert store.stored_size(Blob.of(ADDRESS, built.entry.outputs[0])) is None
        first.check()
    assert local.read_entry(ADDRESS) == b"the next holder's"


def test_a_server_that_hangs_amid_its_work_holds_a_key_for_a_bounded_time(
    make_locks: Callable[..., PostgresLocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_server.postgres_locking.HOLD_SECONDS", 0.2)
    hanging, other = make_locks(), make_locks(timeout=10)
    with pytest.raises(SQLAlchemyError), hanging.hold(ADDRESS):  # noqa: PT012 - raised at the end of the hold
        assert is_free(other)
        hanging.check()


def test_many_requests_for_one_key_wait_in_their_server_and_not_on_connections(
    make_locks: Callable[..., PostgresLocks], url: str
) -> None:
    first, second = make_locks(), make_locks(timeout=10, connections=2)
    begun = threading.Barrier(9)

    def take() -> None:
        begun.wait(HANG_SECONDS)
        assert is_free(second)

    threads = [threading.Thread(target=take) for _ in range(8)]
    with first.hold(ADDRESS):
        for thread in threads:
            thread.start()
        begun.wait(HANG_SECONDS)
        while not (waiting := postgres().servers(url, waiting="advisory")):
            pass
        assert len(waiting) == 1
        # the pool's other connection is there for another key
        with second.hold(build("other").address):
            pass
    for thread in threads:
        thread.join(HANG_SECONDS)


def test_a_server_without_a_free_connection_is_busy_and_says_so(make_locks: Callable[..., PostgresLocks]) -> None:
    locks = make_locks(connections=1)
    with locks.hold(build("other").address):
        taken = []
        thread = threading.Thread(target=lambda: taken.append(is_free(locks)))
        thread.start()
        thread.join(HANG_SECONDS)
    assert taken == [False]


def wait_for(duty: PostgresDuty) -> None:
    """Ask until ``duty`` has it: the database lets a lock go a moment after its connection has ended."""
    deadline = time.monotonic() + HANG_SECONDS
    while not duty.is_ours():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_server_does_the_periodic_work_until_it_is_gone(url: str) -> None:
    first, second, third = (PostgresDuty(connections.postgres_url(make_url(url))) for _ in range(3))
    assert [duty.is_ours() for duty in (first, second, first, second)] == [True, False, True, False]
    first.close()
    wait_for(second)
    assert [duty.is_ours() for duty in (first, second)] == [False, True]
    postgres().disconnect(url)
    # whoever asks next has it; the one that lost it notices
    wait_for(third)
    assert [duty.is_ours() for duty in (second, third)] == [False, True]
    for duty in (first, second, third):
        duty.close()


def test_the_numbers_of_locks_never_change_between_versions_that_run_together() -> None:
    assert connections.lock_id("duty") == -2518271048390580624
    assert connections.lock_id(f"key/{ADDRESS}") == -3975526806675812131
    assert connections.lock_id("migration") == -133776086299632376


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgres://u@h/d", "postgresql+psycopg"),
        ("postgresql://u@h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://u@h/d", "postgresql+psycopg"),
        ("postgresql+asyncpg://u@h/d", None),
        ("mysql://u@h/d", None),
        ("postgresql://u@h", None),
    ],
)
def test_an_address_of_another_database_is_refused_with_what_to_give(given: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(Exception, match="postgresql://user@host/name"):
            connections.postgres_url(make_url(given))
    else:
        assert connections.postgres_url(make_url(given)).drivername == expected
