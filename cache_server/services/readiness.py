"""Whether this server should be sent requests: it can read, publish and give leases, and is not about to stop.

Probes learn ok or not; what is wrong stands in the log, once for each change, and is told to administrators.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import SQLAlchemyError

from cache_server.database import scrub
from cache_server.stores.base import StoreError, StoreFullError

if TYPE_CHECKING:
    from cache_server.database.engine import Database
    from cache_server.database.migrate import Schema
    from cache_server.stores.base import Store
    from cache_server.workers import Workers

OK = "ok"
_DRAINING = "draining: this server is about to stop"

_log = structlog.get_logger("cache_server.health")


class Readiness:
    """Look at the parts when a probe asks. Event loop only."""

    def __init__(self, *, store: Store, database: Database, schema: Schema, workers: Workers) -> None:
        self._store = store
        self._database = database
        self._schema = schema
        self._workers = workers
        self._looking: asyncio.Future[dict[str, str]] | None = None
        self._last: dict[str, str] = {}
        self.draining = False

    async def look(self) -> tuple[bool, dict[str, str]]:
        """Return whether the server is ready, and what each part said: ``ok`` or a sentence.

        Probes that come while one looks share its answer: a store that hangs must not take every worker thread.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._workers.run(self._look))
        parts = dict(await asyncio.shield(self._looking))
        if self.draining:
            parts["server"] = _DRAINING
        # a full store goes on with reads, and tells uploads; the scrub serves nobody who asks
        ready = all(said == OK for name, said in parts.items() if name not in {"room", "scrub"})
        if parts != self._last:
            wrong = {name: said for name, said in parts.items() if said != OK}
            if wrong or self._last:
                _log.warning("readiness", ready=ready, **wrong)
            self._last = parts
        return ready, parts

    def _look(self) -> dict[str, str]:
        parts = {"server": OK, "database": OK, "schema": OK, "store": OK, "room": OK, "scrub": OK}
        try:
            with self._database.reading() as connection:
                parts["schema"] = self._schema.judge(connection) or OK
                progress = scrub.progress(connection) if parts["schema"] == OK else None
                parts["scrub"] = (progress and progress.reason) or OK
            if parts["schema"] == OK:
                self._database.check()
        except SQLAlchemyError as error:
            # drivers like to spread over several lines
            parts["database"] = " ".join(str(getattr(error, "orig", None) or error).split())
        try:
            self._store.check()
        except StoreFullError:
            parts["room"] = "the store has no room left: uploads are refused, reads go on"
        except StoreError as error:
            parts["store"] = str(error)
        return parts
