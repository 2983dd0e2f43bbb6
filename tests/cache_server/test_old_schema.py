"""A database of the schema before, with what a server of that time wrote, serves on after the upgrade."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from cache_server import maintenance
from cache_server.database.models import Base
from cache_server.settings import Settings
from tests.cache_server.harness import TOKEN, build
from tests.support.postgres import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cache_server.harness import InProcess

pytestmark = pytest.mark.once

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture(params=["sqlite", "postgresql"])
def old_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database as a server of revision 0003 left it: three entries, a pin, a quota, leases, a token."""
    text = (DATA / f"schema-0003.{request.param}.sql").read_text()
    if request.param == "sqlite":
        path = tmp_path / "old" / "cache.db"
        path.parent.mkdir()
        connection = sqlite3.connect(path)
        connection.executescript(text)
        connection.close()
        yield f"sqlite:///{path}"
        return
    with postgres().new_database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(text)  # type: ignore[arg-type] # a script of its own, not a query with values
        yield url


def test_entries_pins_quotas_and_tokens_of_the_schema_before_survive_the_upgrade(
    old_database: str, make_server: Callable[..., InProcess], tmp_path: Path
) -> None:
    first = make_server()
    for name in ("a", "b", "c"):
        first.publish(build(name))
    # outputs and entries as that server stored them: it was the same layout; the policy is in its database only
    first.close()
    shutil.rmtree(first.store_root / "meta", ignore_errors=True)

    before, after = maintenance.upgrade(Settings(database=old_database, data_dir=tmp_path / "data"))
    assert before == "20261130_0003"
    assert after is not None
    assert after > before
    server = make_server(database=old_database, bootstrap_token=None, migrate=False, threads=4)
    with server.service.database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    for name in ("a", "b", "c"):
        built = build(name)
        # the old server's admin token opens the new one
        assert server.call("GET", built.artifact, token=TOKEN).content == built.stored["model.neff"]
        assert server.call("GET", built.path).json() == built.entry.to_json()
    (pin,) = server.call("GET", "/v1/default/pins").json()["pins"]
    assert pin["key"] == build("a").entry.key
    assert server.call("GET", "/admin/v1/policy").json()["quotas"]["default"]["max_entries"] == 20
    # generations go on above those that the old server gave
    again = server.ask(build("held"))
    assert again["state"] == "granted"
    assert server.publish(build("new")).status_code == 201
    server.close()
