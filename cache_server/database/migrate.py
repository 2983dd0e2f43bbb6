"""Bring a database to this version's schema."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.errors import LockNotAvailable
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from cache_server.database.postgres import lock_id
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

    from cache_server.database.engine import Database

MIGRATION_SECONDS = 120
"""How long a starting server waits for another one's migration."""

_MIGRATION_LOCK = lock_id("migration")


def scripts_folder() -> Path:
    """Return the folder of the migration scripts: inside the package in a wheel, beside it in a source tree."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError("this installation lacks its database migrations: install neff-cache[server] again")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts_folder()).replace("%", "%%"))
    return config


def revision_of(engine: Engine) -> str | None:
    """Return the schema's revision, or None for a database without tables."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def check_schema(database: Database) -> None:
    """See, without writing, that the database has this version's schema; raises `ConfigurationError` if not."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    with database.reading() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current != head:
        raise ConfigurationError(
            f"the database {database.shown} has schema {current}, not {head}: bring it up to date with "
            "`neff-cache admin migrate`, or use the version of neff-cache that made it"
        )


class Schema:
    """What this version's code needs of the schema, for servers that run while another version migrates."""

    def __init__(self) -> None:
        scripts = ScriptDirectory.from_config(_config())
        self.head = scripts.get_current_head()
        self._known = {script.revision for script in scripts.walk_revisions()}

    def judge(self, connection: Connection) -> str | None:
        """Return in one sentence why this server cannot work with the database's schema, None if it can.

        A schema that is not known here is one that a newer version has made while we run. It suits us: a release's
        migrations only add to what the release before uses (migrations/README.md).
        """
        current = MigrationContext.configure(connection).get_current_revision()
        if current == self.head or (current is not None and current not in self._known):
            return None
        return f"the database has schema {current}, and this version needs {self.head}: run `neff-cache admin migrate`"


def migrate(database: Database) -> None:
    """Bring the schema up to date; raises `ConfigurationError` if it is newer than this version knows.

    Safe while other servers run or start: one migrates, the others wait and find it done.
    """
    config = _config()
    scripts = ScriptDirectory.from_config(config)
    if _is_current(database.engine, scripts, database.shown):
        return
    with contextlib.ExitStack() as stack:
        if not database.is_sqlite:
            stack.enter_context(_one_migration(database))
            if _is_current(database.engine, scripts, database.shown):
                return
        try:
            with database.engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except OperationalError as error:
            if isinstance(error.orig, LockNotAvailable):
                raise ConfigurationError(
                    f"the database {database.shown} was in use while its schema was to be upgraded, and was left as it "
                    "was: start again"
                ) from error
            raise


def is_current(database: Database) -> bool:
    """Return whether a start would find nothing to migrate; raises `ConfigurationError` for a schema not known here."""
    return _is_current(database.engine, ScriptDirectory.from_config(_config()), database.shown)


def _is_current(engine: Engine, scripts: ScriptDirectory, shown: str) -> bool:
    current = revision_of(engine)
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise ConfigurationError(
            f"the database {shown} has schema {current}, which this version does not know: "
            "start the newer neff-cache that made it, or give another --database"
        )
    return current == scripts.get_current_head()


@contextlib.contextmanager
def _one_migration(database: Database) -> Iterator[None]:
    """Hold the lock of migrations, waiting for whoever migrates now."""
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{MIGRATION_SECONDS}s'")
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{MIGRATION_SECONDS}s'")
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _MIGRATION_LOCK})
        yield
