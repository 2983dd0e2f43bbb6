"""Everything a server is made of, opened in order and closed in reverse."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from cache_server.access import anonymous
from cache_server.coordination import Coordination
from cache_server.database.engine import comes_back
from cache_server.database.measured import MeasuredDatabase
from cache_server.database.migrate import Schema, check_schema, migrate
from cache_server.locking import only_server
from cache_server.metrics import Metrics
from cache_server.services.authentication import Authentication
from cache_server.services.catalogue import Catalogue
from cache_server.services.collection import Collection
from cache_server.services.deletion import Deletion
from cache_server.services.measured import MeasuredAudit, MeasuredLeasing, MeasuredPolling, MeasuredPublishing
from cache_server.services.meta import Meta
from cache_server.services.pins import Pins
from cache_server.services.plans import Plans
from cache_server.services.polling import Polling
from cache_server.services.promoting import Promoting
from cache_server.services.quotas import Quotas
from cache_server.services.readiness import Readiness
from cache_server.services.rebuilding import Rebuilding
from cache_server.services.removal import Removal
from cache_server.services.repairing import Repairing
from cache_server.services.reports import Reports
from cache_server.services.reservation import Space
from cache_server.services.scrubbing import Scrubbing
from cache_server.services.suspicion import Suspicion
from cache_server.services.sweeping import Sweeping
from cache_server.services.tokens import Tokens
from cache_server.services.trust import Trust
from cache_server.services.usage import Usage
from cache_server.stores.base import Store, StoreError
from cache_server.stores.guarded import GuardedStore
from cache_server.stores.local_files import LASTING
from cache_server.stores.open import new_store
from cache_server.throttling import Throttle
from cache_server.tracing.open import open_tracing
from cache_server.weak_tokens import check_secret
from cache_server.workers import Workers
from client.errors import ConfigurationError
from client.token import ensure_user_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cache_server.access import Principal
    from cache_server.database.engine import Clock, Database
    from cache_server.locking import Duty
    from cache_server.services.audit import Audit
    from cache_server.services.leasing import Leasing
    from cache_server.services.publishing import Publishing
    from cache_server.services.waiting import Waiters
    from cache_server.settings import Settings
    from cache_server.tracing.base import Tracing

_FOLDER_MODE = 0o700


class AwayError(ConfigurationError):
    """The service cannot open because store or database are away, and may come back by themselves."""


@dataclass(frozen=True)
class Service:
    """The parts of one server. Routes take what they need from here."""

    settings: Settings
    store: Store
    database: Database
    workers: Workers
    waiters: Waiters
    duty: Duty
    metrics: Metrics
    tracing: Tracing
    tokens: Tokens
    anonymous: Principal | None
    authentication: Authentication
    audit: Audit
    throttle: Throttle
    catalogue: Catalogue
    trust: Trust
    promoting: Promoting
    publishing: Publishing
    deletion: Deletion
    leasing: Leasing
    polling: MeasuredPolling
    suspicion: Suspicion
    sweeping: Sweeping
    space: Space
    scrubbing: Scrubbing
    repairing: Repairing
    rebuilding: Rebuilding
    usage: Usage
    collection: Collection
    quotas: Quotas
    pins: Pins
    plans: Plans
    reports: Reports
    readiness: Readiness
    closing: contextlib.ExitStack

    @classmethod
    def open(cls, settings: Settings, *, clock: Clock | None = None) -> Service:
        """Open store and database, bring the schema up to date, finish what a crash left, register tokens.

        Raises `ConfigurationError` for anything that stops a server from starting: one sentence for the operator.
        """
        settings.host_names()
        settings.check_role()
        with _as_configuration(), contextlib.ExitStack() as opening:
            service = cls._open(settings, clock, opening)
            # what the store knows comes first: a token that was revoked must not be let in anew
            service.rebuilding.recover()
            service.tokens.recover()
            service.tokens.shut_open_doors()
            service.register_tokens()
            # a local store is ours by its lock file; a bucket may have other servers at work
            service.sweeping.recover(alone=settings.bucket_url is None)
            service.closing.push(opening.pop_all())
        return service

    @classmethod
    @contextlib.contextmanager
    def for_maintenance(cls, settings: Settings) -> Iterator[Service]:
        """Open the parts for a command of an operator: no token is registered, nothing is served or finished.

        Raises `ConfigurationError`, also where a server on this machine has folder or database to itself.
        """
        with _as_configuration(), contextlib.ExitStack() as opening:
            yield cls._open(settings, None, opening)

    @classmethod
    def _open(cls, settings: Settings, clock: Clock | None, opening: contextlib.ExitStack) -> Service:
        metrics, tracing = Metrics(most_projects=settings.metrics_projects), open_tracing(settings)
        opening.callback(tracing.close)
        database = MeasuredDatabase(
            settings.database_url(), metrics, tracing, clock=clock, connections=settings.threads
        )
        opening.callback(database.close)
        for folder in _folders(settings, database.path):
            opening.enter_context(only_server(folder / ".server.lock"))
        if settings.migrate:
            migrate(database)
        else:
            check_schema(database)

        locks, waiters, duty = Coordination.open(settings, database, opening)
        store: Store = GuardedStore(new_store(settings), metrics, locks, tracing)
        store.open()
        opening.callback(store.close)
        used = Usage(database)
        opening.callback(used.close)
        workers = Workers(settings.threads)
        opening.callback(workers.close)
        audit = MeasuredAudit(database, metrics)
        removal = Removal(store, database, audit)
        catalogue = Catalogue(store, database, locks, removal, audit)
        leasing = MeasuredLeasing(
            metrics,
            database=database,
            locks=locks,
            catalogue=catalogue,
            waiters=waiters,
            ttl_seconds=settings.lease_ttl_seconds,
            most_held=settings.max_leases,
        )
        suspicion = Suspicion(store=store, locks=locks, catalogue=catalogue, removal=removal)
        sweeping = Sweeping(
            store=store,
            database=database,
            locks=locks,
            catalogue=catalogue,
            removal=removal,
            orphan_seconds=settings.orphan_seconds,
            quarantine_seconds=settings.quarantine_seconds,
        )
        meta = Meta(store, database)
        collection = Collection(
            database=database,
            locks=locks,
            catalogue=catalogue,
            removal=removal,
            used=used,
            meta=meta,
            metrics=metrics,
            audit=audit,
            grace_seconds=settings.collect_grace_seconds,
        )
        trust = Trust(database=database, meta=meta, audit=audit)
        publishing = MeasuredPublishing(
            metrics,
            tracing,
            store=store,
            database=database,
            locks=locks,
            catalogue=catalogue,
            waiters=waiters,
            audit=audit,
            trust=trust,
        )
        quotas = Quotas(database=database, collection=collection, meta=meta, metrics=metrics, audit=audit)
        space = Space(store.free_bytes, reserve_bytes=settings.reserve_bytes)
        tokens, unnamed = Tokens(database, workers, meta=meta, audit=audit), anonymous(settings.anonymous)
        opening.callback(tokens.close)
        return cls(
            settings=settings,
            store=store,
            database=database,
            workers=workers,
            waiters=waiters,
            duty=duty,
            metrics=metrics,
            tracing=tracing,
            tokens=tokens,
            anonymous=unnamed,
            authentication=Authentication.open(settings, tokens, workers, anonymous=unnamed),
            catalogue=catalogue,
            audit=audit,
            throttle=Throttle(settings.rate_limit, settings.rate_burst_seconds),
            trust=trust,
            promoting=Promoting(
                store=store,
                locks=locks,
                catalogue=catalogue,
                publishing=publishing,
                suspicion=suspicion,
                trust=trust,
                quotas=quotas,
                space=space,
            ),
            publishing=publishing,
            deletion=Deletion(database=database, locks=locks, catalogue=catalogue, removal=removal, audit=audit),
            leasing=leasing,
            polling=MeasuredPolling(
                Polling(leasing=leasing, database=database, waiters=waiters, workers=workers), metrics, tracing
            ),
            suspicion=suspicion,
            sweeping=sweeping,
            space=space,
            scrubbing=Scrubbing(
                store=store,
                database=database,
                suspicion=suspicion,
                duty=duty,
                metrics=metrics,
                bytes_per_second=settings.scrub_bytes_per_second,
                every_seconds=settings.scrub_seconds,
            ),
            repairing=Repairing(
                database=database, locks=locks, catalogue=catalogue, suspicion=suspicion, sweeping=sweeping
            ),
            rebuilding=Rebuilding(
                store=store,
                database=database,
                locks=locks,
                catalogue=catalogue,
                meta=meta,
                collection=collection,
                tokens=tokens,
            ),
            usage=used,
            collection=collection,
            quotas=quotas,
            pins=Pins(database=database, locks=locks, catalogue=catalogue, meta=meta, audit=audit),
            plans=Plans(database, audit),
            reports=Reports(database),
            readiness=Readiness(store=store, database=database, schema=Schema(), workers=workers),
            closing=contextlib.ExitStack(),
        )

    def register_tokens(self) -> None:
        """Let the operator's and the user's own token in; raises `ConfigurationError` if nobody could get in."""
        first = self.settings.first_token()
        if first is not None:
            self.tokens.register_admin(first, "bootstrap")
        if self.settings.is_loopback:
            where = "the user's own token file"
            self.tokens.register_admin(check_secret(ensure_user_token(os.environ), where), "user")
        elif not self.tokens.any_usable():
            raise ConfigurationError(
                f"--host {self.settings.host} can be reached from other machines and there is no token yet: "
                "set NEFF_CACHE_BOOTSTRAP_TOKEN for the first start, or run `neff-cache admin token create`"
            )

    def close(self) -> None:
        """Wait for running work, then close everything; may be called twice."""
        self.sweeping.stopping = self.collection.stopping = True
        self.closing.close()


@contextlib.contextmanager
def _as_configuration() -> Iterator[None]:
    """Say in one sentence for the operator what store or database say."""
    try:
        yield
    except StoreError as error:
        kind = ConfigurationError if error.lasting else AwayError
        raise kind(f"{error}; see --store and --data-dir") from error
    except SQLAlchemyError as error:
        # drivers like to spread over several lines
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        kind = AwayError if comes_back(error) else ConfigurationError
        raise kind(f"the database cannot be used: {reason}; see --database and --data-dir") from error


def _folders(settings: Settings, database: Path | None) -> list[Path]:
    """Make the folders a server needs to itself, and return them in one order for every server.

    With PostgreSQL and a bucket there is none: such a server keeps nothing on its disk.
    """
    folders = set()
    if settings.bucket_url is None:
        folders.add(settings.store_path().absolute())
    if database is not None:
        folders.add(database.absolute().parent)
    for folder in sorted(folders):
        try:
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            kind = ConfigurationError if error.errno in LASTING else AwayError
            raise kind(f"the folder {folder} cannot be made: {error.strerror}; see --data-dir") from error
    return sorted(folders)
