"""Copy an SQLite database while a server uses it: SQLite's own online backup, whole as of one moment."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from cache_server.stores.local_files import sync_folder
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from cache_server.settings import Settings

_BUSY_SECONDS = 30.0
_MODE = 0o600


def back_up(settings: Settings, target: Path) -> int:
    """Write a copy of the database to ``target``, which must not exist yet; return its bytes.

    The copy is durable and has its name only once it is whole. Raises `ConfigurationError`.
    """
    url = settings.database_url()
    if url.get_backend_name() != "sqlite":
        raise ConfigurationError(
            "this command copies SQLite: back a PostgreSQL database up with `pg_dump --format=custom`, "
            "see docs/operations.md"
        )
    source = url.database or ""
    if not os.path.isfile(source):  # noqa: PTH113 - the URL holds text
        raise ConfigurationError(f"there is no database {source}; see --data-dir and --database")
    if target.exists():
        raise ConfigurationError(f"{target} is there already: give a new name for each backup")
    # the same one for each try of a name, and short however long that is
    partial = target.with_name(f".neff-cache-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:32]}.partial")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _MODE))
        _copy(source, partial)
        # fails where another backup has taken the name meanwhile
        os.link(partial, target)
        sync_folder(target.parent)
        return target.stat().st_size
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"the backup to {target} failed, and nothing was left there: {reason}") from error
    finally:
        partial.unlink(missing_ok=True)


def _copy(source: str, partial: Path) -> None:
    with (
        closing(sqlite3.connect(f"file:{_quoted(source)}?mode=ro", uri=True, timeout=_BUSY_SECONDS)) as found,
        closing(sqlite3.connect(partial, timeout=_BUSY_SECONDS)) as copy,
    ):
        # all pages in one step: the copy is of one moment, and a server that writes meanwhile does not restart it
        found.backup(copy)
        # a backup is one file: no journal beside it that could be left behind
        copy.execute("PRAGMA journal_mode = DELETE")
        result = copy.execute("PRAGMA quick_check").fetchone()[0]
        if result != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {result}")
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
