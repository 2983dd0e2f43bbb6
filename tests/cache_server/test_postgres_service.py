"""A server on PostgreSQL: it outlives restarts of its database, and takes no more of it than it should."""

from __future__ import annotations

import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import make_url

from cache_server.database import entries
from cache_server.database.engine import Database
from cache_server.database.migrate import migrate, revision_of
from cache_server.database.models import EntryState
from cache_server.service import Service
from cache_server.settings import Settings
from cache_server.stores.base import Blob
from client.errors import ConfigurationError
from tests.cache_server.harness import TOKEN, build, problem
from tests.fakes.waiting import HANG_SECONDS
from tests.support.postgres import own_postgres, postgres
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cache_server.harness import InProcess

pytestmark = pytest.mark.once


@pytest.fixture
def url() -> Iterator[str]:
    with postgres().new_database() as found:
        yield found


def test_a_server_outlives_a_restart_of_its_database(make_server: Callable[..., InProcess]) -> None:
    built, other = build("a"), build("b")
    with own_postgres() as database, database.new_database() as url:
        server = make_server(database=url, threads=4)
        server.publish(built)
        assert server.call("GET", built.artifact).status_code == 200
        assert server.call("GET", "/readyz").status_code == 200

        database.stop()
        for method, path, body in (
            ("GET", built.artifact, None),
            ("PUT", other.path, other.entry.to_json()),
            ("POST", other.lease, {"holder": {"host": "h", "pid": 1, "rank": None, "label": ""}}),
            ("GET", "/readyz", None),
        ):
            answer = server.call(method, path, json=body)
            assert problem(answer) == (503, "not_ready")
        assert server.call("GET", "/healthz").status_code == 200

        database.start()
        assert server.call("GET", "/readyz").status_code == 200
        assert server.call("GET", built.artifact).content == built.stored["model.neff"]
        assert server.publish(other).status_code == 201
        assert server.ask(build("c"))["state"] == "granted"


@pytest.mark.soak
def test_a_waiter_outlives_a_restart_of_the_database(
    make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build()
    with own_postgres() as database, database.new_database() as url:
        server = make_server(database=url, threads=4)
        assert server.ask(built, host="holder")["state"] == "granted"
        looked, glance = threading.Event(), server.service.leasing.glance

        def glance_and_tell(*arguments: Any) -> Any:
            try:
                return glance(*arguments)
            finally:
                looked.set()

        monkeypatch.setattr(server.service.leasing, "glance", glance_and_tell)
        waiting = server.send_ask(built, host="waiter", wait_seconds=25)
        assert looked.wait(HANG_SECONDS)
        database.stop()
        database.start()
        assert server.publish(built).status_code == 201
        assert waiting.result(HANG_SECONDS).json()["state"] == "ready"


def test_a_server_holds_no_more_connections_than_it_promises(make_server: Callable[..., InProcess], url: str) -> None:
    threads = 4
    server = make_server(database=url, threads=threads)
    built = [build(str(number)) for number in range(8)]
    for one in built:
        server.ask(one)
    waiting = [server.send_ask(one, wait_seconds=20) for one in built for _ in range(4)]
    server.waiting(len(waiting))
    # the waiters hold no thread: others are served meanwhile
    answers = [server.send("GET", one.artifact) for one in built for _ in range(4)]
    assert {answer.result(HANG_SECONDS).status_code for answer in answers} == {404}
    with ThreadPoolExecutor(8) as pool:
        assert [answer.status_code for answer in pool.map(server.publish, built)] == [201] * 8
    assert {answer.result(HANG_SECONDS).json()["state"] for answer in waiting} == {"ready"}
    # transactions and reads, keys held, the listener, the duty
    assert len(postgres().servers(url)) <= threads + threads // 2 + 2


def test_a_server_that_starts_disturbs_nothing_that_another_has_begun(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch)
    settings = Settings(
        data_dir=tmp_path / "data",
        database=url,
        store=seaweedfs().new_url(),
        bootstrap_token=TOKEN,
        key_lock_seconds=0.2,
    )
    built, removed = build("a"), build("b")
    blob = Blob.of(built.address, built.entry.outputs[0])
    with closing(Service.open(settings)) as running:
        upload = running.store.begin_upload(blob)
        upload.write(built.stored["model.neff"])
        with running.database.transaction() as session:
            entries.insert(session, removed.entry, now=1.0, checked=0.0)
        with running.database.transaction() as session:
            assert entries.mark(session, removed.address, EntryState.DELETING)
        with running.catalogue._locks.hold(removed.address):
            with closing(Service.open(settings)) as started:
                assert started.catalogue.indexed(removed.address) is not None
                # of the two, the one that was first asked does the periodic work
                assert [service.duty.is_ours() for service in (running, started)] == [True, False]
            running.catalogue._locks.check()
        assert upload.commit(blob)
        assert running.store.stored_size(blob) == 400
    # with PostgreSQL and a bucket a server keeps nothing of its own
    assert not (tmp_path / "data").exists()
    with closing(Service.open(settings)) as later:
        assert later.catalogue.indexed(removed.address) is None


def test_a_database_that_does_not_answer_is_one_sentence(make_server: Callable[..., InProcess]) -> None:
    with pytest.raises(ConfigurationError, match=r"the database cannot be used.*--database"):
        make_server(database="postgresql://nobody:secret-word@127.0.0.1:9/none")


def test_a_password_is_never_shown(url: str) -> None:
    database = Database(make_url(url).set(password="secret-word"))
    assert "secret-word" not in database.shown
    database.close()


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.share(1)
def test_neither_password_nor_token_reaches_the_log_when_the_database_is_gone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], log_format: str
) -> None:
    with own_postgres() as database:
        url = make_url(database.url()).set(password="secret-word").render_as_string(hide_password=False)
        with running_server(tmp_path, "--database", url, environment={"NEFF_CACHE_LOG_FORMAT": log_format}) as server:
            assert server.get("/v1/default/lookup", {"keys": []}) == {"found": [], "missing": [], "leased": []}
            database.stop()
            with pytest.raises(urllib.error.HTTPError, match="503"):
                server.get("/v1/default/lookup", {"keys": []})
            token = server.token
    log = capfd.readouterr().err
    assert "Connection refused" in log
    assert "secret-word" not in log
    assert token not in log


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(make_url(url))
    yield database
    database.close()


def test_a_schema_of_a_newer_version_is_left_alone_and_says_what_to_do(database: Database, url: str) -> None:
    migrate(database)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '20990101_0001'")
    with pytest.raises(ConfigurationError, match=r"20990101_0001.*start the newer neff-cache"):
        migrate(database)


def test_a_migration_that_running_servers_hold_up_gives_way_to_them(database: Database, url: str) -> None:
    with psycopg.connect(url) as running:
        # whatever the migration must change is in use, and stays so
        running.execute("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)")
        running.commit()
        running.execute("LOCK TABLE alembic_version IN SHARE MODE")
        with pytest.raises(ConfigurationError, match=r"was in use.*start again"):
            migrate(database)
        running.rollback()
    assert revision_of(database.engine) is None
    migrate(database)
    assert revision_of(database.engine) is not None


def test_of_servers_that_start_at_once_one_migrates_and_none_fails(url: str) -> None:
    databases = [Database(make_url(url)) for _ in range(4)]
    begin = threading.Barrier(len(databases))

    def start(database: Database) -> str | None:
        begin.wait(HANG_SECONDS)
        migrate(database)
        return revision_of(database.engine)

    with ThreadPoolExecutor(len(databases)) as pool:
        revisions = set(pool.map(start, databases))
    assert len(revisions) == 1
    assert None not in revisions
    for database in databases:
        database.close()
