"""Leases: ask, wait, renew, give back. The rules are in `cache_server.lease_rules`; this is their memory and clock."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from typing import TYPE_CHECKING

from cache_server.clock import rfc3339
from cache_server.database import entries, leases
from cache_server.database.models import EntryState, LeaseRow, LeaseState
from cache_server.errors import Problem
from cache_server.lease_rules import Grant, LeaseRequest, PastFailure, Running, decide, next_generation
from client.failures import ran_out
from client.wire import Granted, Holder, LeaseAnswer, Ready, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.lease_rules import Decision
    from cache_server.locking import KeyLocks
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.waiting import Waiters
    from client.errors import Failure


class Leasing:
    """Leases on keys. All methods but `glance` block: worker threads only."""

    def __init__(
        self,
        *,
        database: Database,
        locks: KeyLocks,
        catalogue: Catalogue,
        waiters: Waiters,
        ttl_seconds: float,
        most_held: int | None = None,
        new_token: Callable[[], str] = lambda: secrets.token_urlsafe(32),
    ) -> None:
        self._database = database
        self._locks = locks
        self._catalogue = catalogue
        self._waiters = waiters
        self.ttl_seconds = ttl_seconds
        self._most_held = most_held
        self._new_token = new_token

    def glance(self, connection: Connection, address: Address, request: LeaseRequest) -> LeaseAnswer | None:
        """Return the answer if it needs no writing and no look at the store, else None. Quick: fit for the event loop.

        A ready row needs a look at its outputs, and a grant needs a transaction: both are for `acquire`.
        """
        if entries.is_indexed(connection, address):
            return None
        now = self._database.now(connection)
        decision = self._decide(connection, address, request, now)
        return None if isinstance(decision, Grant) else self._answer(decision, now)

    def acquire(self, address: Address, request: LeaseRequest) -> LeaseAnswer:
        """Return the entry, a grant, or why there is neither.

        Raises `Problem` ``too_many_leases`` for an owner who holds as many as one may.
        """
        found = self._catalogue.indexed(address)
        if found is not None and found.state is EntryState.READY and self._catalogue.is_sound(address, found.entry):
            return Ready(found.entry)
        with self._locks.hold(address):
            with self._database.reading() as connection:
                # of many who woke together one may have been granted the key: the others need no look at the store
                answer = self.glance(connection, address, request)
            if answer is not None:
                return answer
            entry = self._catalogue.settle(address)
            if entry is not None:
                return Ready(entry)
            with self._database.transaction() as session:
                row = leases.newest(session, address)
                now = self._database.now(session)
                decision = self._decide(session, address, request, now)
                if isinstance(decision, Grant):
                    self._check_number(session, request.owner, now)
                    held = leases.newest_held(session, address)
                    if held is not None:  # it ran out: noted now, since until now its holder could have come back
                        leases.add_failure(session, address, self._ran_out(held))
                    return self._grant(session, address, row, request, now)
        return self._answer(decision, now)

    def _decide(self, source: Connection | Session, address: Address, request: LeaseRequest, now: float) -> Decision:
        held = leases.newest_held(source, address)
        failures = leases.failures(source, address, now)
        if held is None or held.expires > now:
            return decide(request, held, failures, now)
        return decide(request, None, [*failures, self._ran_out(held)], now)

    def _ran_out(self, held: Running) -> PastFailure:
        failure = ran_out(held.holder.host, held.holder.pid, self.ttl_seconds)
        return PastFailure(-held.generation, failure, held.holder.host, held.expires)

    @staticmethod
    def _answer(decision: Running | LeaseAnswer, now: float) -> LeaseAnswer:
        if isinstance(decision, Running):
            return Wait(decision.generation, decision.holder, rfc3339(decision.since), max(decision.expires - now, 0.0))
        return decision

    def _grant(
        self, session: Session, address: Address, row: LeaseRow | None, request: LeaseRequest, now: float
    ) -> Granted:
        token = self._new_token()
        if row is None:
            row = LeaseRow(project=address.project, kind=str(address.kind), key=address.key)
            row.generation = next_generation(None, now)
            session.add(row)
        else:
            row.generation = next_generation(row.generation, now)
        row.state = LeaseState.HELD
        row.token_hash = _hash(token)
        row.holder = json.dumps(request.holder.to_json())
        row.owner = request.owner
        row.since = now
        row.expires = now + self.ttl_seconds
        return Granted(token, row.generation, self.ttl_seconds)

    def _check_number(self, session: Session, owner: str | None, now: float) -> None:
        """Keep one owner from taking every key. Grants at the same moment may pass the bound together."""
        if owner is None or self._most_held is None:
            return
        if leases.count_held_by(session, owner, now) >= self._most_held:
            raise Problem(
                "too_many_leases",
                f"this token holds {self._most_held} leases, as many as it may (max_leases): give some back, or wait",
                headers={"Retry-After": str(math.ceil(self.ttl_seconds))},
            )

    def renew(self, address: Address, token: str) -> Granted:
        """Heartbeat. A lease that ran out may still be renewed while nobody has taken it over.

        Raises `Problem` ``lease_lost``.
        """
        with self._database.transaction() as session:
            row = self._own(session, address, token)
            row.expires = self._database.now(session) + self.ttl_seconds
            return Granted(token, row.generation, self.ttl_seconds)

    def release(self, address: Address, token: str, failure: Failure | None) -> None:
        """Give the lease back, with the failure if there was one, and wake those who wait.

        Raises `Problem` ``lease_lost``: a failure of a lease that was taken over counts for nothing.
        """
        with self._database.transaction() as session:
            row = self._own(session, address, token)
            row.state = LeaseState.RELEASED if failure is None else LeaseState.FAILED
            if failure is not None:
                now = self._database.now(session)
                host = Holder.from_json(json.loads(row.holder)).host
                leases.add_failure(session, address, PastFailure(row.generation, failure, host, now))
            self._waiters.announce(session, address)
        self._waiters.wake(address)

    @staticmethod
    def _own(session: Session, address: Address, token: str) -> LeaseRow:
        row = leases.newest(session, address)
        if row is None or row.state != LeaseState.HELD or not hmac.compare_digest(row.token_hash, _hash(token)):
            raise Problem("lease_lost")
        return row


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
