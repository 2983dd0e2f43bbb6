"""Bearer tokens: known by their hashes, looked up once a second at most.

A token that an operator made is a row of policy, which the store keeps too (`cache_server.services.meta`); the table
``tokens`` is the index in which requests find it. What `register_admin` lets in is in the table alone until it is
revoked: it comes back with every start.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

import structlog
from sqlalchemy.exc import SQLAlchemyError

from cache_server.access import SERVER, Grant, Principal, Scope
from cache_server.clock import rfc3339
from cache_server.database import policy, tokens
from cache_server.database.models import TokenRow
from cache_server.errors import Problem
from cache_server.grants import MAX_GRANTS, check_grant, grant_to_json, grants_text
from cache_server.weak_tokens import is_weak
from client.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.access import Actor
    from cache_server.database.engine import Database
    from cache_server.services.audit import Audit
    from cache_server.services.meta import Meta
    from cache_server.workers import Workers
    from client.wire import Json

PREFIX = "nc_"
"""Begins every token made here, for programs that look for secrets: ``nc_[A-Za-z0-9_-]{43}``."""
MAX_LABEL = 128
LOWEST_RATE, HIGHEST_RATE = 0.001, 1e6
"""Requests a second: no rate at all would be a time without end between two of them."""
USED_SECONDS = 60.0
"""How often it is written down which tokens were used."""

_KNOWN_SECONDS = 1.0
_MOST_KNOWN = 4096
_RANDOM_BYTES = 32

_log = structlog.get_logger("cache_server.tokens")


def token_hash(token: str) -> str:
    """Return the form in which a token is stored and compared."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class NewToken(NamedTuple):
    """What a token is to be. ``seconds``: its life, None for no end; ``rate``: requests a second, see `Principal`."""

    label: str
    grants: tuple[Grant, ...]
    seconds: float | None = None
    rate: float | None = None

    def check(self) -> NewToken:
        """Return it; raises `Problem` ``invalid`` or `client.errors.WireError` for what cannot be."""
        if not 0 < len(self.label) <= MAX_LABEL or not self.label.isprintable():
            raise Problem("invalid", f"a token's label has 1 to {MAX_LABEL} printable characters")
        if not 0 < len(self.grants) <= MAX_GRANTS:
            raise Problem("invalid", f"a token has 1 to {MAX_GRANTS} grants")
        if self.rate is not None and not LOWEST_RATE <= self.rate <= HIGHEST_RATE:
            raise Problem("invalid", f"a token's rate is {LOWEST_RATE:g} to {HIGHEST_RATE:.0f} requests a second")
        for grant in self.grants:
            check_grant(grant)
        return self


class Tokens:
    """Tokens in the database. A revoked token stops within a second, on every server."""

    def __init__(
        self,
        database: Database,
        workers: Workers,
        *,
        meta: Meta,
        audit: Audit,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._workers = workers
        self._meta = meta
        self._audit = audit
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, Principal | None]] = {}
        self._used: set[str] = set()

    async def principal(self, token: str) -> Principal | None:
        """Return whose token this is, or None. Looked up by hash: timing tells nothing about stored tokens.

        One that somebody could guess opens nothing, whatever the database holds.
        """
        digest = token_hash(token)
        now = self._monotonic()
        known = self._known.get(digest)
        if known is None or now >= known[0]:
            found = None
            if not is_weak(token):
                found = await self._database.read(lambda connection: self._find(connection, digest), self._workers.pool)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[digest] = (now + _KNOWN_SECONDS, found)
        if known[1] is not None:
            self._used.add(digest)
        return known[1]

    def _find(self, connection: Connection, digest: str) -> Principal | None:
        row = tokens.find(connection, digest)
        if row is None or tokens.state(row, self._database.now(connection)) != "valid":
            return None
        return Principal(row.label, tokens.grants(row), tokens.public_id(digest), row.rate)

    def create(self, wanted: NewToken, *, by: Actor) -> tuple[str, Json]:
        """Make a token; return it, which is the only time that anybody sees it, and what `list` says of it. Blocks."""
        wanted.check()
        token = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        digest = token_hash(token)
        with self._database.transaction() as session:
            now = self._database.now(session)
            value = _new(wanted, now, by)
            self._write(session, digest, value)
            self._record(session, by, "token.create", digest, value)
            return token, tokens.shown(session.get_one(TokenRow, digest), now)

    def _write(self, session: Session, digest: str, value: Json) -> None:
        self._meta.write(session, policy.TOKENS, digest, value, project=None)
        # what was written: a revision that only the store knew of may have revoked it
        tokens.index(session, digest, policy.value(session, policy.TOKENS, digest) or value)

    def _record(self, session: Session, by: Actor, action: str, digest: str, value: Json) -> None:
        detail = {
            "token": tokens.public_id(digest),
            "label": value["label"],
            "grants": grants_text(value["grants"]),
            "expires": None if value["expires"] is None else rfc3339(value["expires"]),
        }
        self._audit.change(session, by, action, detail=detail)

    def revoke(self, public_id: str, *, by: Actor) -> bool:
        """Revoke a token for good; False if there is none of that id, True also if it was revoked before. Blocks."""
        if not tokens.is_public_id(public_id):
            raise Problem("invalid", f"{public_id!r} is no token's id: expected 12 hexadecimal digits, as listed")
        with self._database.transaction() as session:
            row = tokens.named(session, public_id)
            if row is None:
                return False
            if row.revoked is None:
                value = {**tokens.value(row), "revoked": self._database.now(session)}
                self._write(session, row.token_hash, value)
                self._record(session, by, "token.revoke", row.token_hash, value)
        self._known.pop(row.token_hash, None)
        return True

    def list(self) -> list[Json]:
        """Return what is known of every token, the oldest first. Blocks."""
        with self._database.reading() as connection:
            now = self._database.now(connection)
            return [tokens.shown(row, now) for row in tokens.every(connection)]

    def register_admin(self, token: str, label: str) -> None:
        """Make ``token`` an admin token, unless it is known already: one that was revoked stays revoked. Blocks."""
        digest = token_hash(token)

        def register(session: Session) -> None:
            if session.get(TokenRow, digest) is not None:
                return
            admin = NewToken(label, (Grant(frozenset({Scope.ADMIN})),))
            value = _new(admin, self._database.now(session), SERVER)
            tokens.index(session, digest, value)
            self._record(session, SERVER, "token.register", digest, value)

        # several servers register the same token when they start together
        self._database.upsert(register)

    def shut_open_doors(self) -> None:
        """Revoke tokens that anybody could guess, which earlier versions took, and say loudly that they stood open.

        They open nothing here; revoked they open nothing on a server of the version before either. Blocks.
        """
        with self._database.reading() as connection:
            found = tokens.open_to_all(connection)
        for row in found:
            public_id = tokens.public_id(row.token_hash)
            _log.error(
                "ANYBODY COULD USE THIS SERVER: it took a token that is empty or a placeholder; it is revoked now",
                token=public_id,
                label=row.label,
                grants=grants_text([grant_to_json(grant) for grant in tokens.grants(row)]),
                since=rfc3339(row.created),
                last_used=None if row.last_used is None else rfc3339(row.last_used),
                see="docs/tokens.md, Was a door open?",
            )
            self.revoke(public_id, by=SERVER)

    def recover(self) -> None:
        """Take over what the store knows of tokens and the database does not, because it is an older copy. Blocks."""
        restored = self._meta.restore(policy.TOKENS)
        if restored:
            _log.warning("the database was behind the store: tokens taken over from there", rows=restored)
            self.index()

    def index(self) -> None:
        """Make the index of tokens agree with the rows of policy. Blocks."""
        with self._database.transaction() as session:
            for row in policy.rows(session, policy.TOKENS):
                try:
                    tokens.index(session, row.row, row.value)
                except (KeyError, TypeError, WireError) as error:
                    _log.warning("a token in the store means nothing and opens nothing", row=row.row, error=repr(error))

    def any_usable(self) -> bool:
        """Return whether there is a token that opens anything. Blocks."""
        with self._database.reading() as connection:
            return tokens.any_usable(connection, self._database.now(connection))

    def write_used(self) -> None:
        """Write down which tokens were used since the last time. Blocks."""
        used, self._used = self._used, set()
        if used:
            with self._database.transaction() as session:
                tokens.mark_used(session, used, self._database.now(session))

    async def keep_writing(self) -> None:
        """Write down uses every so often, until cancelled. What cannot be written costs a time in a list."""
        while True:
            await asyncio.sleep(USED_SECONDS)
            try:
                await self._workers.run(self.write_used)
            except SQLAlchemyError as error:
                _log.warning("which tokens were used could not be written", error=str(error))

    def close(self) -> None:
        """Write what is left, at shutdown."""
        try:
            self.write_used()
        except SQLAlchemyError as error:
            _log.warning("which tokens were used could not be written", error=str(error))


def _new(wanted: NewToken, now: float, by: Actor) -> Json:
    return {
        "label": wanted.label,
        "grants": [grant_to_json(grant) for grant in wanted.grants],
        "created": now,
        "created_by": by.name,
        "expires": None if wanted.seconds is None else now + wanted.seconds,
        "revoked": None,
        "rate": wanted.rate,
    }
