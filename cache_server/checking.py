"""Try out settings before a server starts with them: nothing that is written stays.

In a bucket one small object is written, read and deleted, as every start does; a row of the database is rolled back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from cache_server.database import tokens
from cache_server.database.migrate import check_schema, is_current
from cache_server.database.models import LeaseRow, LeaseState
from cache_server.identity_file import read_identity_file
from cache_server.maintenance import existing_database, said_plainly
from cache_server.stores.open import new_store
from cache_server.stores.s3 import S3Store
from cache_server.tls import TlsFiles
from client.errors import ConfigurationError
from client.names import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.database.engine import Database
    from cache_server.settings import Settings

State: TypeAlias = Literal["ok", "failed"]


class Finding(NamedTuple):
    """What one part said: in one sentence how it is, or why no server could start with it."""

    part: str
    state: State
    said: str


def check_settings(settings: Settings) -> list[Finding]:
    """Try each part on its own, so that one run tells of all that is wrong."""
    parts: dict[str, Callable[[Settings], str]] = {
        "host names": _host_names,
        "role": _role,
        "tls": _tls,
        "identities": _identities,
        "store": _store,
        "database": _database,
        "first token": _first_token,
    }
    return [_try(part, look, settings) for part, look in parts.items()]


def _try(part: str, look: Callable[[Settings], str], settings: Settings) -> Finding:
    try:
        with said_plainly():
            return Finding(part, "ok", look(settings))
    except ConfigurationError as error:
        return Finding(part, "failed", str(error))


def _host_names(settings: Settings) -> str:
    return ", ".join(sorted(settings.host_names()))


def _role(settings: Settings) -> str:
    settings.check_role()
    return settings.role


def _tls(settings: Settings) -> str:
    files = TlsFiles.from_settings(settings)
    if files is None:
        return "off"
    files.context()
    return f"{files.certificate}, client certificates {files.client_mode}"


def _identities(settings: Settings) -> str:
    if settings.identity_file is None:
        return "none"
    read_identity_file(settings.identity_file)
    return str(settings.identity_file)


def _store(settings: Settings) -> str:
    with contextlib.closing(new_store(settings)) as store:
        if not isinstance(store, S3Store):
            return _folder(settings.store_path())
        steps = _Steps()
        store.open(steps)
        return f"{store.location}: {steps}"


def _folder(path: Path) -> str:
    """Look at a folder that a server has to itself, and at what lies in it already."""
    existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    if not existing.is_dir() or not _may(existing, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{existing} is no folder that can be written; see --store and --data-dir")
    if existing != path:
        return f"{path}, which the first start makes"
    # what an earlier start left, perhaps as another user
    for entry in sorted(path.iterdir()):
        wanted = os.R_OK | os.W_OK | (os.X_OK if entry.is_dir() else 0)
        if not _may(entry, wanted):
            raise ConfigurationError(f"{entry} cannot be written by this user; a server must own what it finds")
    return str(path)


def _may(path: Path, wanted: int) -> bool:
    # the effective user's rights: those that a server has
    return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


def _database(settings: Settings) -> str:
    url = settings.database_url()
    if url.get_backend_name() == "sqlite" and url.database:
        _folder(Path(url.database).expanduser().absolute().parent)
    database = existing_database(settings)
    if database is None:
        return "SQLite, which the first start makes"
    with contextlib.closing(database):
        if is_current(database):
            steps = _Steps()
            _try_row(database, steps)
            return f"{database.shown}: {steps}"
        if not settings.migrate:
            check_schema(database)
    return f"{database.shown}; the start brings its schema up to date"


def _try_row(database: Database, done: Callable[[str], None]) -> None:
    """Write a row as a lease does, read it back, and take it back."""
    key, now = secrets.token_hex(32), time.time()
    with contextlib.suppress(_UndoneError), database.transaction() as session:
        session.add(
            LeaseRow(
                project="check-config",
                kind=str(Kind.GRAPH),
                key=key,
                generation=1,
                state=LeaseState.RELEASED,
                token_hash="",
                holder="{}",
                since=now,
                expires=now,
            )
        )
        session.flush()
        done("write")
        session.expire_all()
        if session.get(LeaseRow, ("check-config", str(Kind.GRAPH), key)) is None:
            raise ConfigurationError(f"{database.shown} does not give back what was written")
        done("read back")
        raise _UndoneError
    done("roll back")


class _UndoneError(Exception):
    """Ends a transaction of which nothing is to stay."""


class _Steps:
    """What was done so far, each step with its milliseconds."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._last = time.perf_counter()

    def __call__(self, step: str) -> None:
        now = time.perf_counter()
        self._said[step] = (now - self._last) * 1000
        self._last = now

    def __str__(self) -> str:
        return ", ".join(f"{step} {milliseconds:.1f} ms" for step, milliseconds in self._said.items())


def _first_token(settings: Settings) -> str:
    if settings.first_token() is not None:
        return "from the settings"
    if settings.is_loopback:
        return "the user's own"
    database = existing_database(settings)
    if database is not None:
        with contextlib.closing(database), database.reading() as connection:
            if not is_current(database):
                return "not looked for: the schema is not up to date"
            if tokens.any_usable(connection, database.now(connection)):
                return "in the database"
    raise ConfigurationError(
        "there is none yet, and other machines can reach this server: set NEFF_CACHE_BOOTSTRAP_TOKEN_FILE for the "
        "first start, or run `neff-cache admin token create`"
    )
