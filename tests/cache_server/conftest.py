from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from sqlalchemy import make_url

from cache_server.database.engine import Database
from cache_server.database.migrate import migrate
from tests.cache_server.harness import FakeClock, InProcess
from tests.support.postgres import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in os.environ:
        if name.startswith("NEFF_CACHE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))
    # a command that runs here would leave its logs bound to a stream that is closed when its test ends
    monkeypatch.setattr("cache_server.logging.configure", lambda _settings: None)
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def template_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "cache.db"
    database = Database(make_url(f"sqlite:///{path}"))
    migrate(database)
    database.close()
    return path


@pytest.fixture
def make_server(tmp_path: Path, template_database: Path) -> Iterator[Callable[..., InProcess]]:
    """Servers in this process, on one data folder unless told otherwise, closed at the end."""
    made: list[InProcess] = []

    def make(*, clock: FakeClock | None = None, folder: Path | None = None, **settings: Any) -> InProcess:
        server = InProcess(folder or tmp_path, clock, settings, template_database)
        made.append(server)
        return server

    yield make
    for server in made:
        if not server.loop.is_closed():
            server.close()


@pytest.fixture
def server(make_server: Callable[..., InProcess]) -> InProcess:
    return make_server()


@pytest.fixture(params=["sqlite", "postgresql"])
def either(
    request: pytest.FixtureRequest, make_server: Callable[..., InProcess], clock: FakeClock
) -> Iterator[InProcess]:
    """A server on each kind of database, by a clock that the test moves."""
    if request.param == "sqlite":
        yield make_server(clock=clock)
        return
    with postgres().new_database() as url:
        found = make_server(clock=clock, database=url, threads=4)
        yield found
        found.close()
