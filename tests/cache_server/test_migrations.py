from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import make_url

from cache_server.database.engine import Database
from cache_server.database.migrate import migrate, revision_of, scripts_folder
from cache_server.database.models import Base
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(make_url(f"sqlite:///{tmp_path}/cache.db"))
    yield database
    database.close()


def test_the_migrations_make_exactly_the_tables_that_the_models_describe(database: Database) -> None:
    migrate(database)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrating_twice_changes_nothing(database: Database) -> None:
    migrate(database)
    before = revision_of(database.engine)
    migrate(database)
    assert revision_of(database.engine) == before is not None


def test_a_database_of_a_newer_version_is_left_alone(database: Database, tmp_path: Path) -> None:
    migrate(database)
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '20990101_0001'")
    connection.close()
    with pytest.raises(ConfigurationError, match="20990101_0001"):
        migrate(database)


def test_a_migration_that_fails_leaves_the_database_as_it_was(database: Database, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        connection.execute("CREATE TABLE plans (x)")
    connection.close()
    with pytest.raises(Exception, match="plans"):
        migrate(database)
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert tables == {"plans"}


def test_the_database_survives_a_crash_of_the_machine_without_waiting_for_readers(database: Database) -> None:
    with database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_each_migration_is_dated_and_makes_one_line_of_history() -> None:
    names = sorted(path.stem for path in (scripts_folder() / "versions").glob("*.py"))
    assert names
    assert all(name[:8].isdigit() and name[8] == "_" for name in names)
