"""Which entries are used: noted in memory while requests are answered, written about once a second.

A crash loses what the last second noted, which costs an entry a little of its worth and nothing else. See
`cache_server.collection_rules` for what a use counts.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import SQLAlchemyError

from cache_server.address import Address
from cache_server.database import usage

if TYPE_CHECKING:
    from collections.abc import Collection

    from cache_server.collection_rules import Named
    from cache_server.database.engine import Database
    from cache_server.workers import Workers

_MOST_NOTED = 100_000
"""Entries whose uses wait in memory while the database does not answer: some 30 MB. What is more is not counted."""

_log = structlog.get_logger("cache_server.usage")


class Usage:
    """Uses of entries, by any thread. `note` never blocks; `flush` does."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._noted: Counter[Named] = Counter()
        self._writing: Counter[Named] = Counter()

    def note(self, address: Address) -> None:
        """Count one use."""
        named = (address.project, str(address.kind), address.key)
        with self._lock:
            if named in self._noted or len(self._noted) < _MOST_NOTED:
                self._noted[named] += 1

    def note_keys(self, project: str, keys: Collection[str]) -> None:
        """Count one use for each of these keys that has an entry: where this server sees no single request. Blocks."""
        with self._database.reading() as connection:
            for named in usage.named_keys(connection, project, keys):
                self.note(Address.parse(*named))

    def is_noted(self, named: Named) -> bool:
        """Return whether a use is on its way to the database."""
        with self._lock:
            return named in self._noted or named in self._writing

    def flush(self) -> int:
        """Write what was noted, in one transaction; return how many entries. What cannot be written is kept."""
        with self._lock:
            if not self._noted or self._writing:
                return 0
            self._writing, self._noted = self._noted, Counter()
        try:
            with self._database.transaction() as session:
                usage.add(session, self._writing, self._database.now(session))
        except BaseException:
            with self._lock:
                self._noted.update(self._writing)
                self._writing = Counter()
            raise
        with self._lock:
            written, self._writing = len(self._writing), Counter()
        return written

    def close(self) -> None:
        """Write what is left, at shutdown; it is lost if the database does not answer."""
        try:
            self.flush()
        except SQLAlchemyError as error:
            _log.warning("the last uses could not be written and are lost", error=str(error))

    async def keep_writing(self, seconds: float, workers: Workers) -> None:
        """Flush every so often, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await workers.run(self.flush)
            except SQLAlchemyError as error:
                _log.warning("uses could not be written; they are kept for the next time", error=str(error))
