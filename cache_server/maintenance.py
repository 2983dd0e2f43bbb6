"""What an operator does to a store and its database without serving them: check, repair, rebuild, migrate, collect."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from cache_server.database.engine import Database
from cache_server.database.migrate import check_schema, migrate, revision_of
from cache_server.locking import only_server
from cache_server.periodic import once
from cache_server.service import Service
from cache_server.services.fsck import Fsck
from cache_server.stores.base import StoreError
from cache_server.stores.open import new_store
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cache_server.periodic import Round
    from cache_server.services.invariants import Report
    from cache_server.services.rebuilding import Rebuilt
    from cache_server.settings import Settings


def check(settings: Settings, *, deep: bool = False) -> Report:
    """Check store and database without changing either, whether or not a server runs on them.

    ``deep``: read and hash every output. Raises `ConfigurationError` if store or database cannot be read.
    """
    with said_plainly(), contextlib.ExitStack() as opening:
        store = new_store(settings)
        opening.callback(store.close)
        if settings.bucket_url is None and not settings.store_path().is_dir():
            raise ConfigurationError(f"there is no store in {store.location}; see --data-dir and --store")
        database = existing_database(settings)
        if database is not None:
            opening.callback(database.close)
            check_schema(database)
        return Fsck(store, database, orphan_seconds=settings.orphan_seconds, deep=deep).run()


def repair(settings: Settings, *, deep: bool = False) -> tuple[Report, Report]:
    """Check, repair what can be, check again; return both reports.

    Beside servers on PostgreSQL the locks of each key are taken; a server on SQLite must be stopped first. Raises
    `ConfigurationError`.
    """
    with Service.for_maintenance(settings) as service:
        alone = settings.bucket_url is None

        def report() -> Report:
            orphan_seconds = settings.orphan_seconds
            return Fsck(service.store, service.database, orphan_seconds=orphan_seconds, deep=deep, alone=alone).run()

        before = report()
        service.repairing.repair(before.findings, alone=alone)
        return before, report()


def rebuild(settings: Settings) -> Rebuilt:
    """Make the database from the store, or add to it what it lacks. Raises `ConfigurationError`."""
    with Service.for_maintenance(settings) as service:
        return service.rebuilding.rebuild()


def upgrade(settings: Settings) -> tuple[str | None, str | None]:
    """Bring the database to this version's schema; return the revisions before and after.

    Beside servers of the version before on PostgreSQL; a server on SQLite must be stopped first. Raises
    `ConfigurationError`.
    """
    with said_plainly(), contextlib.ExitStack() as opening:
        database = Database(settings.database_url(), connections=4)
        opening.callback(database.close)
        if database.path is not None:
            if not database.path.is_file():
                raise ConfigurationError(f"there is no database {database.shown} yet: the first start makes it")
            opening.enter_context(only_server(database.path.absolute().parent / ".server.lock"))
        before = revision_of(database.engine)
        migrate(database)
        return before, revision_of(database.engine)


def collect_once(settings: Settings) -> Round:
    """Do one round of the periodic work: sweep, then collect. Raises `ConfigurationError`.

    Beside servers on PostgreSQL and a bucket; a server on SQLite or a folder must be stopped first.
    """
    with said_plainly(), Service.for_maintenance(settings) as service:
        return once(service)


def existing_database(settings: Settings) -> Database | None:
    """Open the database if there is one: opening an SQLite file that is absent would make it."""
    database = Database(settings.database_url(), connections=2)
    if database.path is not None and not database.path.is_file():
        database.close()
        return None
    return database


@contextlib.contextmanager
def said_plainly() -> Iterator[None]:
    """Turn what store or database say into one `ConfigurationError`."""
    try:
        yield
    except (StoreError, SQLAlchemyError) as error:
        reason = getattr(error, "orig", None) or error
        raise ConfigurationError(f"store or database cannot be used: {' '.join(str(reason).split())}") from error
