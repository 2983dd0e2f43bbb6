"""What services may rely on, whichever database lies below: SQLite in this process, or a PostgreSQL server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import make_url, select

from cache_server.access import SERVER, Scope
from cache_server.coordination import Coordination
from cache_server.database import entries, leases
from cache_server.database.engine import Database
from cache_server.database.migrate import migrate, revision_of
from cache_server.database.models import Base, EntryState, LeaseState, PlanRow
from cache_server.database.tokens import public_id
from cache_server.errors import Problem
from cache_server.lease_rules import LeaseRequest, PastFailure
from cache_server.service import Service
from cache_server.services.tokens import token_hash
from cache_server.settings import Settings
from cache_server.stores.base import Blob
from client.errors import Failure
from client.wire import Failed, Granted, Holder, Ready, Wait
from tests.cache_server.harness import TOKEN, FakeClock, build
from tests.fakes.waiting import HANG_SECONDS
from tests.support.postgres import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cache_server.locking import KeyLocks
    from tests.cache_server.harness import Built

HOLDER = Holder("host", 1, 0, "label")
ASK = LeaseRequest(HOLDER)
TTL = 30.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/cache.db"
    else:
        with postgres().new_database() as found:
            yield found


@pytest.fixture
def settings(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Settings(data_dir=tmp_path / "data", database=url, bootstrap_token=TOKEN, threads=8, key_lock_seconds=10)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(make_url(url))
    migrate(database)
    yield database
    database.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def service(settings: Settings, clock: FakeClock) -> Iterator[Service]:
    service = Service.open(settings, clock=clock)
    yield service
    service.close()


def upload(service: Service, built: Built) -> None:
    for output in built.entry.outputs:
        upload = service.store.begin_upload(Blob.of(built.address, output))
        upload.write(built.stored[output.name])
        upload.commit(Blob.of(built.address, output))


def together(number: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work`` on so many threads at the same moment, and return what each returned."""
    barrier = threading.Barrier(number)

    def begin(which: int) -> Any:
        barrier.wait(HANG_SECONDS)
        return work(which)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(begin, range(number)))


class TestSchema:
    def test_the_migrations_make_exactly_the_tables_that_the_models_describe(self, database: Database) -> None:
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []

    def test_servers_that_start_together_migrate_once(self, url: str) -> None:
        databases = [Database(make_url(url)) for _ in range(4 if "postgresql" in url else 1)]
        together(len(databases), lambda which: migrate(databases[which]))
        assert revision_of(databases[0].engine) is not None
        for database in databases:
            database.close()


class TestTransactions:
    def test_a_transaction_that_fails_leaves_nothing(self, database: Database) -> None:
        with pytest.raises(ZeroDivisionError), database.transaction() as session:  # noqa: PT012 - rolled back
            session.add(PlanRow(project="p", name="n", body="", updated=1.0))
            session.flush()
            raise ZeroDivisionError
        with database.reading() as connection:
            assert connection.execute(select(PlanRow.name)).all() == []

    def test_what_is_committed_is_seen_at_once_by_every_reader(self, database: Database) -> None:
        with database.reading() as kept:
            assert kept.execute(select(PlanRow.name)).all() == []
            with database.transaction() as session:
                session.add(PlanRow(project="p", name="n", body="", updated=1.0))
            assert kept.execute(select(PlanRow.name)).scalars().all() == ["n"]

    def test_the_databases_clock_is_in_seconds_and_does_not_stand_still_in_a_transaction(
        self, database: Database
    ) -> None:
        with database.transaction() as session:
            times = {database.now(session) for _ in range(20)}
        assert len(times) > 1
        assert min(times) > 1_700_000_000

    def test_of_many_who_add_one_row_each_succeeds(self, database: Database) -> None:
        def add(which: int) -> None:
            def work(session: Any) -> None:
                row = session.get(PlanRow, ("p", "n"), with_for_update=True)
                if row is None:
                    session.add(PlanRow(project="p", name="n", body="1", updated=1.0))
                else:
                    row.body = str(int(row.body) + 1)

            database.upsert(work)

        together(4, add)
        with database.reading() as connection:
            assert connection.execute(select(PlanRow.body)).scalar_one() == "4"


class TestEntries:
    def test_an_entry_is_found_under_its_own_name_only(self, database: Database) -> None:
        built, other = build("a"), build("a", project="other")
        with database.transaction() as session:
            entries.insert(session, built.entry, now=1.0, checked=0.0)
        with database.reading() as connection:
            hit = entries.hit(connection, built.address)
            assert hit is not None
            assert hit.header == built.entry.to_header()
            assert hit.size == 400
            assert entries.hit(connection, other.address) is None
            names = [(str(built.address.kind), built.address.key)]
            assert list(entries.documents(connection, "default", names)) == names
            assert entries.documents(connection, "other", names) == {}
            found = entries.indexed(connection, built.address)
            assert found == entries.Indexed(EntryState.READY, built.entry)

    def test_an_entry_that_is_being_removed_is_not_served(self, database: Database) -> None:
        built = build()
        with database.transaction() as session:
            entries.insert(session, built.entry, now=1.0, checked=0.0)
        with database.transaction() as session:
            assert entries.mark(session, built.address, EntryState.DELETING)
            assert not entries.mark(session, built.address, EntryState.QUARANTINED)
        with database.reading() as connection:
            assert entries.hit(connection, built.address) is None
            assert entries.document(connection, built.address) is None
            assert entries.totals(connection) == []
            assert entries.being_removed(connection) == [built.address]

    def test_of_many_who_mark_an_entry_for_removal_one_does(self, database: Database) -> None:
        built = build()
        with database.transaction() as session:
            entries.insert(session, built.entry, now=1.0, checked=0.0)

        def mark(_which: int) -> bool:
            with database.transaction() as session:
                return entries.mark(session, built.address, EntryState.DELETING)

        assert sorted(together(4, mark)) == [False, False, False, True]

    def test_totals_are_numbers_of_the_right_kind(self, database: Database) -> None:
        for name in ("a", "b"):
            with database.transaction() as session:
                entries.insert(session, build(name).entry, now=1.0, checked=0.0)
        with database.reading() as connection:
            assert entries.totals(connection) == [entries.Totals("default", "graph", 2, 816, 25.0)]

    def test_many_keys_are_looked_up_at_once(self, database: Database) -> None:
        built = [build(str(number)) for number in range(3)]
        with database.transaction() as session:
            for one in built:
                entries.insert(session, one.entry, now=1.0, checked=0.0)
        wanted = [("graph", f"{number:064x}") for number in range(2 * entries.BATCH)]
        wanted += [("graph", one.address.key) for one in built]
        with database.reading() as connection:
            assert len(entries.documents(connection, "default", wanted)) == 3


class TestLeases:
    def test_of_many_who_ask_at_once_one_is_granted(self, service: Service) -> None:
        address = build().address
        answers = together(8, lambda _which: service.leasing.acquire(address, ASK))
        granted = [answer for answer in answers if isinstance(answer, Granted)]
        waiting = [answer for answer in answers if isinstance(answer, Wait)]
        assert len(granted) == 1
        assert len(waiting) == 7
        assert {answer.generation for answer in waiting} == {granted[0].generation}

    def test_a_lease_that_ran_out_is_taken_over_once_and_its_holder_is_told(
        self, service: Service, clock: FakeClock
    ) -> None:
        address = build().address
        first = service.leasing.acquire(address, ASK)
        assert isinstance(first, Granted)
        clock.now += TTL + 1
        answers = together(8, lambda _which: service.leasing.acquire(address, ASK))
        second = [answer for answer in answers if isinstance(answer, Granted)]
        assert len(second) == 1
        assert second[0].generation > first.generation
        with pytest.raises(Problem, match="ended"):
            service.leasing.renew(address, first.token)
        with pytest.raises(Problem, match="ended"):
            service.leasing.release(address, first.token, Failure("diagnosis", "late"))

    def test_a_heartbeat_and_a_takeover_at_once_leave_one_holder(self, service: Service, clock: FakeClock) -> None:
        for number in range(10):
            address = build(str(number)).address
            held = service.leasing.acquire(address, ASK)
            assert isinstance(held, Granted)
            clock.now += TTL + 1

            def renew(address: Any = address, token: str = held.token) -> bool:
                try:
                    service.leasing.renew(address, token)
                except Problem:
                    return False
                return True

            def race(which: int, address: Any = address, renew: Callable[[], bool] = renew) -> bool:
                return renew() if which else isinstance(service.leasing.acquire(address, ASK), Granted)

            assert sorted(together(2, race)) == [False, True]

    def test_a_publish_ends_the_lease_and_everyone_gets_the_entry(self, service: Service) -> None:
        built = build()
        granted = service.leasing.acquire(built.address, ASK)
        assert isinstance(granted, Granted)
        upload(service, built)
        published = together(4, lambda _which: service.publishing.publish(built.address, built.entry, by=SERVER))
        assert sorted(one.created for one in published) == [False, False, False, True]
        assert service.leasing.acquire(built.address, ASK) == Ready(built.entry)
        with pytest.raises(Problem, match="ended"):
            service.leasing.renew(built.address, granted.token)

    def test_keys_that_somebody_compiles_are_found_among_many(self, service: Service, clock: FakeClock) -> None:
        address = build().address
        service.leasing.acquire(address, ASK)
        wanted = [("graph", f"{number:064x}") for number in range(2 * entries.BATCH)] + [("graph", address.key)]
        with service.database.reading() as connection:
            assert leases.held_keys(connection, "default", wanted, clock.now) == [("graph", address.key)]
            assert leases.count_held(connection, clock.now) == 1
            assert leases.held_keys(connection, "default", wanted, clock.now + TTL + 1) == []
            assert leases.count_held(connection, clock.now + TTL + 1) == 0


class TestFailures:
    def test_a_diagnosis_is_remembered_for_its_time_and_no_longer(self, service: Service, clock: FakeClock) -> None:
        address = build().address
        granted = service.leasing.acquire(address, ASK)
        assert isinstance(granted, Granted)
        service.leasing.release(address, granted.token, Failure("diagnosis", "NCC_E1", "log"))
        clock.now += 299
        answer = service.leasing.acquire(address, ASK)
        assert isinstance(answer, Failed)
        assert answer.failure == Failure("diagnosis", "NCC_E1", "log")
        assert answer.replayed
        clock.now += 2
        assert isinstance(service.leasing.acquire(address, ASK), Granted)

    def test_a_key_rests_after_three_other_failures(self, service: Service, clock: FakeClock) -> None:
        address = build().address
        for _ in range(3):
            granted = service.leasing.acquire(address, ASK)
            assert isinstance(granted, Granted)
            service.leasing.release(address, granted.token, Failure("resource", "memory"))
        assert isinstance(service.leasing.acquire(address, ASK), Failed)
        clock.now += 61
        assert isinstance(service.leasing.acquire(address, ASK), Granted)

    @pytest.mark.parametrize("text", ["nul \0 inside", "half \ud800 a pair", "\U0001f9ea" * 100])
    def test_a_log_that_holds_odd_text_is_remembered_all_the_same(self, database: Database, text: str) -> None:
        address = build().address
        with database.transaction() as session:
            leases.add_failure(session, address, PastFailure(1, Failure("diagnosis", text, text), text, 100.0))
        with database.reading() as connection:
            (past,) = leases.failures(connection, address, 101.0)
        assert past.failure.text[:3] == text[:3]

    def test_what_has_no_effect_any_more_is_forgotten(self, service: Service, clock: FakeClock) -> None:
        address = build().address
        granted = service.leasing.acquire(address, ASK)
        assert isinstance(granted, Granted)
        service.leasing.release(address, granted.token, Failure("transient", "gone"))
        clock.now += 90_000
        with service.database.transaction() as session:
            leases.forget(session, now=clock.now, lease_life=86_400)
        with service.database.reading() as connection:
            assert leases.failures(connection, address, 0.0) == []
            assert connection.execute(select(Base.metadata.tables["leases"])).all() == []

    def test_an_ended_generation_says_how_it_ended(self, service: Service) -> None:
        address = build().address
        granted = service.leasing.acquire(address, ASK)
        assert isinstance(granted, Granted)
        service.leasing.release(address, granted.token, None)
        with service.database.transaction() as session:
            row = leases.newest(session, address)
            assert row is not None
            assert row.state == LeaseState.RELEASED


class TestPolicy:
    def test_a_token_that_several_servers_register_is_known_once(self, service: Service) -> None:
        together(4, lambda _which: service.tokens.register_admin("x" * 40, "user"))
        with service.database.reading() as connection:
            principal = service.tokens._find(connection, token_hash("x" * 40))
        assert principal is not None
        assert principal.may(Scope.WRITE, "any")

    def test_a_revoked_token_stays_revoked(self, service: Service) -> None:
        assert service.tokens.revoke(public_id(token_hash(TOKEN)), by=SERVER)
        service.tokens.register_admin(TOKEN, "bootstrap")
        with service.database.reading() as connection:
            assert service.tokens._find(connection, token_hash(TOKEN)) is None

    def test_a_plan_is_stored_by_many_and_read_whole(self, service: Service) -> None:
        line = f'{{"kind": "graph", "key": "{"0" * 64}"}}\n'
        created = together(4, lambda which: service.plans.write("p", "plan", line.encode() * (which + 1), by=SERVER))
        assert sorted(created) == [False, False, False, True]
        body = service.plans.read("p", "plan")
        assert body is not None
        assert body in {line * number for number in range(1, 5)}

    def test_reports_of_many_clients_add_up(self, service: Service) -> None:
        summary = {"by_kind": {"graph": {"lookups": 3, "saved_seconds": 1.5, "hits": {"disk": 2}}}}
        together(6, lambda _which: service.reports.add("p", summary))
        with service.database.reading() as connection:
            totals = {line.counter: line.total for line in service.reports.totals(connection)}
        assert totals == {"lookups": 18.0, "saved_seconds": 9.0, "disk_hits": 12.0}


class TestLocks:
    """Two users of one lock: two servers on PostgreSQL, two requests of one server on SQLite."""

    @pytest.fixture
    def locks(self, settings: Settings, database: Database, closing: ExitStack) -> tuple[KeyLocks, KeyLocks]:
        quick = settings.model_copy(update={"key_lock_seconds": 0.2})
        first = Coordination.open(quick, database, closing).locks
        return first, first if database.is_sqlite else Coordination.open(quick, database, closing).locks

    def test_a_key_that_is_held_too_long_is_busy(self, locks: tuple[KeyLocks, KeyLocks]) -> None:
        address = build().address

        def take(_which: int) -> str:
            with pytest.raises(Problem) as caught, locks[1].hold(address):
                pass
            return caught.value.kind.name

        with locks[0].hold(address), ThreadPoolExecutor(1) as pool:
            locks[0].check()
            assert pool.submit(take, 0).result(HANG_SECONDS) == "busy"
        with locks[1].hold(address):
            locks[1].check()

    def test_another_key_is_not_held_up(self, locks: tuple[KeyLocks, KeyLocks]) -> None:
        with locks[0].hold(build("a").address), locks[1].hold(build("b").address):
            pass

    def test_a_lock_ends_with_its_holders_exception(self, locks: tuple[KeyLocks, KeyLocks]) -> None:
        with pytest.raises(ZeroDivisionError), locks[0].hold(build().address):
            raise ZeroDivisionError
        with locks[1].hold(build().address):
            pass

    def test_holders_take_turns(self, settings: Settings, database: Database, closing: ExitStack) -> None:
        users = [Coordination.open(settings, database, closing).locks for _ in range(1 if database.is_sqlite else 3)]
        inside: list[int] = []
        most = 0

        def work(which: int) -> None:
            nonlocal most
            for _ in range(5):
                with users[which % len(users)].hold(build().address):
                    inside.append(which)
                    most = max(most, len(inside))
                    inside.remove(which)

        together(6, work)
        assert most == 1


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
