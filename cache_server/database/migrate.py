"""Bring a database to this version's schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from cache_server.database.engine import Database


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


def migrate(database: Database) -> None:
    """Bring the schema up to date; raises `ConfigurationError` if it is newer than this version knows."""
    config = _config()
    scripts = ScriptDirectory.from_config(config)
    current = revision_of(database.engine)
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise ConfigurationError(
            f"the database {database.shown} has schema {current}, which this version does not know: "
            "start the newer neff-cache that made it, or give another --database"
        )
    if current == scripts.get_current_head():
        return
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
