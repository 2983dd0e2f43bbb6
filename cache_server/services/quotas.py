"""Quotas: how much a project may hold. Collection is tried before anything is refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cache_server.collection_rules import Amount, Limit
from cache_server.database import policy, usage
from cache_server.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.access import Actor
    from cache_server.address import Address
    from cache_server.collection_rules import Rules
    from cache_server.database.engine import Database
    from cache_server.metrics import Metrics
    from cache_server.services.audit import Audit
    from cache_server.services.collection import Collection
    from cache_server.services.meta import Meta
    from client.wire import Json

_TRIES = 4
_PAUSE = 0.25
"""Seconds between two tries while another collection runs."""
_FUTILE_SECONDS = 15.0
"""Seconds for which a project is not searched again for entries that could go, after none were found."""


class Quotas:
    """Quotas and rules of projects, and the look at them before anything is added. Blocks: worker threads only.

    The quota is looked at before an upload and before a publish, not in the publish's transaction: entries that are
    published at the same moment may exceed it together. The next one then finds the project full.
    """

    def __init__(
        self,
        *,
        database: Database,
        collection: Collection,
        meta: Meta,
        metrics: Metrics,
        audit: Audit,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._collection = collection
        self._meta = meta
        self._metrics = metrics
        self._audit = audit
        self._sleep = sleep
        self._monotonic = monotonic
        self._futile: dict[str, float] = {}

    def admit(self, address: Address, stored_bytes: int) -> None:
        """Return if an entry of that size may be added to the project, after a collection if need be.

        Raises `Problem` ``quota_exceeded``. What stands under the key already may always be sent again.
        """
        project, incoming = address.project, Amount(stored_bytes, 1)
        with self._database.reading() as connection:
            limit = policy.limit(connection, project)
            if limit == Limit() or usage.candidate(connection, address) is not None:
                return
        if self._fits(project, limit, incoming):
            return
        if not incoming.fits(limit):
            self._refuse(project, f"one entry of {stored_bytes} bytes is larger than the quota of project {project}")
        if self._monotonic() >= self._futile.get(project, float("-inf")):
            self._make_room(project, incoming)
            if self._fits(project, limit, incoming):
                return
        self._refuse(project, self._sentence(project, limit, incoming))

    def has_room(self, project: str) -> bool:
        """Return whether one entry more would be admitted, if it is small; changes nothing."""
        incoming = Amount(1, 1)
        with self._database.reading() as connection:
            limit = policy.limit(connection, project)
        return self._fits(project, limit, incoming) or self._collection.could_make_room(project, incoming)

    def _fits(self, project: str, limit: Limit, incoming: Amount) -> bool:
        with self._database.reading() as connection:
            return usage.amount(connection, project).plus(incoming).fits(limit)

    def _make_room(self, project: str, incoming: Amount) -> None:
        for attempt in range(_TRIES):
            if attempt:
                self._sleep(_PAUSE)
            state = self._collection.make_room(project, incoming).state
            if state == "futile":
                self._futile[project] = self._monotonic() + _FUTILE_SECONDS
            if state != "busy":
                return

    def _sentence(self, project: str, limit: Limit, incoming: Amount) -> str:
        with self._database.reading() as connection:
            held = usage.amount(connection, project)
        most = [
            f"{value} {what}"
            for value, what in ((limit.max_bytes, "bytes"), (limit.max_entries, "entries"))
            if value is not None
        ]
        return (
            f"project {project} holds {held.stored_bytes} bytes in {held.entries} entries, its quota is "
            f"{' and '.join(most)}, and nothing can be collected now for {incoming.stored_bytes} bytes more: "
            "delete or unpin entries, or have an operator raise the quota"
        )

    def _refuse(self, project: str, sentence: str) -> None:
        self._metrics.quota_refusals.labels(self._metrics.projects.label(project)).inc()
        raise Problem("quota_exceeded", sentence)

    def set(self, project: str | None, limit: Limit, *, by: Actor) -> None:
        """Set what a project, or with None the whole server, may hold; without any bound the quota is removed."""
        value = None if limit == Limit() else limit._asdict()
        self._write(policy.QUOTAS, project, value, by)
        if project is not None:
            self._futile.pop(project, None)

    def set_rules(self, project: str | None, rules: Rules | None, *, by: Actor) -> None:
        """Set what a project, or with None every project without rules of its own, drops; None removes the rules."""
        self._write(policy.RULES, project, None if rules is None else policy.rules_to_json(rules), by)

    def _write(self, table: str, project: str | None, value: Json | None, by: Actor) -> None:
        with self._database.transaction() as session:
            row = policy.row_of(project)
            if policy.value(session, table, row) != value:
                self._meta.write(session, table, row, value, project=project)
                self._audit.change(session, by, f"{table}.set", project=project, detail={"value": value})
