"""Collection: entries that are worth least go, where there is too much or a rule says so.

What goes and in which order is decided by `cache_server.collection_rules`. Here it is carried out, one entry at a time
under its key's lock, in the order of every deletion; and whatever was pinned, leased or used since the plan was made
stays. Readers that hold an output open read it to its end; others find a miss.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import structlog

from cache_server.access import SERVER
from cache_server.address import Address
from cache_server.collection_plan import Victim, plan
from cache_server.collection_rules import NOTHING, Amount, Policy, excess
from cache_server.database import entries, leases, policy, usage
from cache_server.database.models import EntryState
from cache_server.errors import Problem
from cache_server.services.jobs import Jobs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.access import Actor
    from cache_server.collection_plan import Reason
    from cache_server.collection_rules import PinSet
    from cache_server.database.engine import Database
    from cache_server.locking import Duty, KeyLocks
    from cache_server.metrics import Metrics
    from cache_server.services.audit import Audit
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.jobs import Running
    from cache_server.services.meta import Meta
    from cache_server.services.removal import Removal
    from cache_server.services.usage import Usage
    from cache_server.workers import Workers
    from client.wire import Json

State: TypeAlias = Literal["done", "dry_run", "paused", "busy", "futile", "interrupted"]

JOB = "collection"
_BATCH = 50
"""Entries between two looks at whether we may go on."""
_FILLED_AT_ONCE = 400
_LISTED = 1000

_log = structlog.get_logger("cache_server.collection")


@dataclass
class Outcome:
    """What a collection did, or would do.

    ``state``: ``done``; ``dry_run``; ``paused`` by an operator's switch; ``busy``: another one runs; ``futile``: it was
    asked for room that it could not make, and removed nothing; ``interrupted`` by shutdown, a pause or a lost job.
    ``spared``: chosen, and then found to be in use, pinned or gone.
    """

    state: State
    chosen: list[Victim] = field(default_factory=list)
    removed: list[Victim] = field(default_factory=list)
    spared: int = 0

    def by_reason(self) -> dict[Reason, Amount]:
        """Return what was removed, or in a dry run chosen, by reason."""
        found: dict[Reason, Amount] = {}
        for victim in self.chosen if self.state == "dry_run" else self.removed:
            amount = Amount(victim.candidate.stored_bytes, 1)
            found[victim.reason] = found.get(victim.reason, NOTHING).plus(amount)
        return found

    def to_json(self) -> Json:
        """Return it as plain JSON values; at most the first thousand entries are listed."""
        shown = self.chosen if self.state == "dry_run" else self.removed
        return {
            "state": self.state,
            "entries": len(shown),
            "bytes": sum(victim.candidate.stored_bytes for victim in shown),
            "spared": self.spared,
            "by_reason": {str(reason): amount._asdict() for reason, amount in sorted(self.by_reason().items())},
            "listed": [_listed(victim) for victim in shown[:_LISTED]],
        }


def _listed(victim: Victim) -> Json:
    candidate = victim.candidate
    return {
        "project": candidate.project,
        "kind": candidate.kind,
        "key": candidate.key,
        "reason": str(victim.reason),
        "score": victim.score,
        "stored_bytes": candidate.stored_bytes,
        "compile_seconds": candidate.compile_seconds,
        "label": candidate.label,
        "compiler": candidate.compiler,
        "compiler_version": candidate.version,
    }


class Collection:
    """Collect. All methods but `keep_collecting` block: worker threads only."""

    def __init__(
        self,
        *,
        database: Database,
        locks: KeyLocks,
        catalogue: Catalogue,
        removal: Removal,
        used: Usage,
        meta: Meta,
        metrics: Metrics,
        audit: Audit,
        grace_seconds: float,
    ) -> None:
        self._database = database
        self._locks = locks
        self._catalogue = catalogue
        self._removal = removal
        self._used = used
        self._meta = meta
        self._metrics = metrics
        self._audit = audit
        self._grace_seconds = grace_seconds
        self._jobs = Jobs(database)
        self._pins: dict[str, tuple[tuple[int, int], PinSet]] = {}
        self.stopping = False

    def run(self, project: str | None = None, *, by: Actor = SERVER) -> Outcome:
        """Collect what the rules say, in one project or in all."""
        return self._run(project, NOTHING, by, all_or_nothing=False)

    def make_room(self, project: str, incoming: Amount) -> Outcome:
        """Collect in a project until ``incoming`` fits its quota; nothing is removed if it could not."""
        return self._run(project, incoming, SERVER, all_or_nothing=True)

    def could_make_room(self, project: str, incoming: Amount) -> bool:
        """Return whether `make_room` would find enough, without removing anything."""
        if self.paused() is not None:
            return False
        with self._database.reading() as connection:
            return self._is_enough(connection, project, incoming, self._plan(connection, project, incoming))

    def dry_run(self, project: str | None = None) -> Outcome:
        """Return what `run` would remove, in its order."""
        self._prepare()
        with self._database.reading() as connection:
            return Outcome("dry_run", chosen=self._plan(connection, project, NOTHING))

    def _run(self, project: str | None, incoming: Amount, by: Actor, *, all_or_nothing: bool) -> Outcome:
        metrics, state = self._metrics, "error"
        begin = metrics.monotonic()
        try:
            outcome = self._run_once(project, incoming, by, all_or_nothing=all_or_nothing)
            state = outcome.state
            return outcome
        finally:
            metrics.collections.labels(state).inc()
            metrics.collection_seconds.observe(metrics.monotonic() - begin)

    def _run_once(self, project: str | None, incoming: Amount, by: Actor, *, all_or_nothing: bool) -> Outcome:
        if self.paused() is not None:
            return Outcome("paused")
        with self._jobs.hold(JOB) as running:
            if running is None:
                return Outcome("busy")
            self._prepare()
            with self._database.reading() as connection:
                chosen = self._plan(connection, project, incoming)
                if all_or_nothing and not self._is_enough(connection, str(project), incoming, chosen):
                    return Outcome("futile", chosen)
            return self._carry_out(chosen, running, by)

    def _prepare(self) -> None:
        """Bring the index up to date with what was used, and with what older servers wrote."""
        self._used.flush()
        with self._database.transaction() as session:
            usage.tidy(session, self._database.now(session))
        filled = _FILLED_AT_ONCE
        while filled == _FILLED_AT_ONCE and not self.stopping:
            with self._database.transaction() as session:
                filled = entries.fill_facts(session, _FILLED_AT_ONCE)

    def _plan(self, connection: Connection, project: str | None, incoming: Amount) -> list[Victim]:
        now = self._database.now(connection)
        return plan(
            lambda: usage.walk(connection, project),
            usage.held(connection, project),
            policy.policy(connection, usage.leased(connection, now), self._grace_seconds, project),
            now,
            {} if project is None else {project: incoming},
        )

    @staticmethod
    def _is_enough(connection: Connection, project: str, incoming: Amount, chosen: Iterable[Victim]) -> bool:
        freed = NOTHING
        for victim in chosen:
            freed = freed.plus(Amount(victim.candidate.stored_bytes, 1))
        over = excess(usage.amount(connection, project), policy.limit(connection, project), incoming)
        return freed.covers(over)

    def _carry_out(self, chosen: list[Victim], running: Running, by: Actor) -> Outcome:
        outcome = Outcome("done", chosen)
        try:
            for number, victim in enumerate(chosen):
                if self.stopping or (number % _BATCH == 0 and not self._may_go_on(running)):
                    outcome.state = "interrupted"
                    break
                if self._collect(victim):
                    outcome.removed.append(victim)
                    self._metrics.count_collected(victim.reason, victim.candidate.stored_bytes)
                else:
                    outcome.spared += 1
        finally:
            if chosen:
                reasons = Counter(str(victim.reason) for victim in outcome.removed)
                _log.info("collected", state=outcome.state, spared=outcome.spared, **reasons)
                self._record(outcome, by)
        return outcome

    def _record(self, outcome: Outcome, by: Actor) -> None:
        """Record what went, in one row for each project: a tenant must find it among its own."""
        gone: dict[str, list[Victim]] = {}
        for victim in outcome.removed:
            gone.setdefault(victim.candidate.project, []).append(victim)
        if not gone:
            return
        with self._database.transaction() as session:
            for project, victims in sorted(gone.items()):
                detail = {
                    "entries": len(victims),
                    "bytes": sum(victim.candidate.stored_bytes for victim in victims),
                    "by_reason": dict(Counter(str(victim.reason) for victim in victims)),
                }
                self._audit.change(session, by, "collection.run", project=project, detail=detail)

    def _may_go_on(self, running: Running) -> bool:
        return running.renew() and self.paused() is None

    def _collect(self, victim: Victim) -> bool:
        address = Address.parse(*victim.candidate.named)
        try:
            with self._locks.hold(address):
                with self._database.transaction() as session:
                    if self._is_spared(session, address) or not entries.mark(session, address, EntryState.DELETING):
                        return False
                found = self._catalogue.indexed(address)
                if found is not None:
                    self._removal.finish(address, found)
        except Problem as problem:
            if problem.kind.name != "busy":
                raise
            # somebody works on the key for longer than a request waits: it is in use
            return False
        return True

    def _is_spared(self, session: Session, address: Address) -> bool:
        """Look again, at this entry alone, in the transaction that would begin its end."""
        found = usage.candidate(session, address)
        if found is None or self._used.is_noted(found.named):
            return True
        now = self._database.now(session)
        current = Policy(
            pins={address.project: self._pins_of(session, address.project)},
            leased={found.named} if leases.running(session, address, now) else (),
            grace_seconds=self._grace_seconds,
        )
        return current.is_spared(found, now)

    def _pins_of(self, session: Session, project: str) -> PinSet:
        """Return the project's pins, read again only after they changed: those of a plan may be many thousands."""
        version = policy.version(session, policy.PINS, project)
        known = self._pins.get(project)
        if known is None or known[0] != version:
            known = (version, policy.pin_set(policy.rows(session, policy.PINS, project)))
            self._pins[project] = known
        return known[1]

    def pause(self, reason: str, *, by: Actor) -> None:
        """Stop all collection, on every server, until `resume`; one that runs stops before its next batch."""
        with self._database.transaction() as session:
            value = {"paused": True, "reason": reason, "by": by.name}
            self._meta.write(session, policy.SWITCHES, policy.COLLECTION, value, project=None)
            self._audit.change(session, by, "collection.pause", detail={"reason": reason})

    def resume(self, *, by: Actor) -> bool:
        """Let collection go on; False if it was not paused."""
        with self._database.transaction() as session:
            if policy.value(session, policy.SWITCHES, policy.COLLECTION) is None:
                return False
            self._meta.write(session, policy.SWITCHES, policy.COLLECTION, None, project=None)
            self._audit.change(session, by, "collection.resume")
            return True

    def paused(self) -> Json | None:
        """Return why collection is paused and by whom, or None."""
        with self._database.reading() as connection:
            return policy.value(connection, policy.SWITCHES, policy.COLLECTION)

    async def keep_collecting(self, seconds: float, workers: Workers, duty: Duty) -> None:
        """Collect every so often, where this server has the duty, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                if await workers.run(duty.is_ours):
                    await workers.run(self.run)
            except Exception as error:  # noqa: BLE001 - the next round may go well; the server serves meanwhile
                _log.error("collection failed", exc_info=error)
