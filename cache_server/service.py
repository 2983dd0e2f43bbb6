"""Everything a server is made of, opened in order and closed in reverse."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from cache_server.access import anonymous
from cache_server.database.engine import Database
from cache_server.database.migrate import migrate
from cache_server.locking import ProcessLocks, only_server
from cache_server.metrics import Metrics
from cache_server.services.catalogue import Catalogue
from cache_server.services.deletion import Deletion
from cache_server.services.leasing import Leasing
from cache_server.services.plans import Plans
from cache_server.services.polling import Polling
from cache_server.services.publishing import Publishing
from cache_server.services.removal import Removal
from cache_server.services.reports import Reports
from cache_server.services.reservation import Space
from cache_server.services.suspicion import Suspicion
from cache_server.services.sweeping import Sweeping
from cache_server.services.tokens import Tokens
from cache_server.services.waiting import LocalWaiters, Waiters
from cache_server.stores.base import Store, StoreError
from cache_server.stores.local import LocalStore
from cache_server.stores.measured import MeasuredStore
from cache_server.workers import Workers
from client.errors import ConfigurationError
from client.token import ensure_user_token

if TYPE_CHECKING:
    from pathlib import Path

    from cache_server.access import Principal
    from cache_server.database.engine import Clock
    from cache_server.settings import Settings

_FOLDER_MODE = 0o700


@dataclass(frozen=True)
class Service:
    """The parts of one server. Routes take what they need from here."""

    settings: Settings
    store: Store
    database: Database
    workers: Workers
    waiters: Waiters
    metrics: Metrics
    tokens: Tokens
    anonymous: Principal | None
    catalogue: Catalogue
    publishing: Publishing
    deletion: Deletion
    leasing: Leasing
    polling: Polling
    suspicion: Suspicion
    sweeping: Sweeping
    space: Space
    plans: Plans
    reports: Reports
    closing: contextlib.ExitStack

    @classmethod
    def open(cls, settings: Settings, *, clock: Clock | None = None) -> Service:
        """Open store and database, bring the schema up to date, finish what a crash left, register tokens.

        Raises `ConfigurationError` for anything that stops a server from starting: one sentence for the operator.
        """
        settings.host_names()
        try:
            with contextlib.ExitStack() as opening:
                service = cls._open(settings, clock, opening)
                service.register_tokens()
                service.sweeping.recover(alone=True)
                service.closing.push(opening.pop_all())
        except StoreError as error:
            raise ConfigurationError(f"{error}; see --store and --data-dir") from error
        except SQLAlchemyError as error:
            reason = getattr(error, "orig", None) or error
            raise ConfigurationError(f"the database cannot be used: {reason}; see --database and --data-dir") from error
        return service

    @classmethod
    def _open(cls, settings: Settings, clock: Clock | None, opening: contextlib.ExitStack) -> Service:
        database = Database(settings.database_url(), clock=clock, connections=settings.threads)
        opening.callback(database.close)
        root = settings.store_path()
        if not database.is_sqlite:
            raise ConfigurationError(
                f"--database {database.shown}: this version keeps leases on SQLite only; leave the option out"
            )
        for folder in _folders(settings, root, database.path):
            opening.enter_context(only_server(folder / ".server.lock"))
        migrate(database)

        metrics = Metrics()
        store: Store = MeasuredStore(LocalStore(root), metrics)
        store.open()
        workers = Workers(settings.threads)
        opening.callback(workers.close)
        locks = ProcessLocks(settings.key_lock_seconds)
        waiters = LocalWaiters()
        removal = Removal(store, database)
        catalogue = Catalogue(store, database, locks, removal)
        leasing = Leasing(
            database=database, locks=locks, catalogue=catalogue, waiters=waiters, ttl_seconds=settings.lease_ttl_seconds
        )
        return cls(
            settings=settings,
            store=store,
            database=database,
            workers=workers,
            waiters=waiters,
            metrics=metrics,
            tokens=Tokens(database, workers),
            anonymous=anonymous(settings.anonymous),
            catalogue=catalogue,
            publishing=Publishing(store=store, database=database, locks=locks, catalogue=catalogue, waiters=waiters),
            deletion=Deletion(database=database, locks=locks, catalogue=catalogue, removal=removal),
            leasing=leasing,
            polling=Polling(leasing=leasing, database=database, waiters=waiters, workers=workers),
            suspicion=Suspicion(store=store, locks=locks, catalogue=catalogue, removal=removal),
            sweeping=Sweeping(
                store=store,
                database=database,
                locks=locks,
                catalogue=catalogue,
                removal=removal,
                orphan_seconds=settings.orphan_seconds,
                quarantine_seconds=settings.quarantine_seconds,
            ),
            space=Space(store.free_bytes, reserve_bytes=settings.reserve_bytes),
            plans=Plans(database),
            reports=Reports(database),
            closing=contextlib.ExitStack(),
        )

    def register_tokens(self) -> None:
        """Let the operator's and the user's own token in; raises `ConfigurationError` if nobody could get in."""
        if self.settings.bootstrap_token is not None:
            self.tokens.register_admin(self.settings.bootstrap_token.get_secret_value(), "bootstrap")
        if self.settings.is_loopback:
            self.tokens.register_admin(ensure_user_token(os.environ), "user")
        elif not self.tokens.any_usable():
            raise ConfigurationError(
                f"--host {self.settings.host} can be reached from other machines and there is no token yet: "
                "set NEFF_CACHE_BOOTSTRAP_TOKEN for the first start"
            )

    def close(self) -> None:
        """Wait for running work, then close everything; may be called twice."""
        self.sweeping.stopping = True
        self.closing.close()


def _folders(settings: Settings, root: Path, database: Path | None) -> list[Path]:
    """Make the folders a server needs to itself, and return them in one order for every server."""
    folders = {root.absolute(), settings.data_dir.absolute() if database is None else database.absolute().parent}
    for folder in (settings.data_dir.absolute(), *folders):
        try:
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"the folder {folder} cannot be made: {error.strerror}; see --data-dir") from error
    return sorted(folders)
