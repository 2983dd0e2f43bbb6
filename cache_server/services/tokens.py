"""Bearer tokens: known by their hashes, looked up once a second at most."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, func, select

from cache_server.access import Grant, Principal, Scope
from cache_server.database.models import TokenRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.database.engine import Database
    from cache_server.workers import Workers

_KNOWN_SECONDS = 1.0
_MOST_KNOWN = 4096
_FIND = select(TokenRow).where(TokenRow.token_hash == bindparam("token_hash"))


def token_hash(token: str) -> str:
    """Return the form in which a token is stored and compared."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Tokens:
    """Tokens in the database. A revoked token stops within a second, on every server."""

    def __init__(
        self, database: Database, workers: Workers, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._workers = workers
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, Principal | None]] = {}

    async def principal(self, token: str) -> Principal | None:
        """Return whose token this is, or None. Looked up by hash: timing tells nothing about stored tokens."""
        digest = token_hash(token)
        now = self._monotonic()
        known = self._known.get(digest)
        if known is not None and now < known[0]:
            return known[1]
        principal = await self._database.read(lambda connection: self._find(connection, digest), self._workers.pool)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[digest] = (now + _KNOWN_SECONDS, principal)
        return principal

    def _find(self, connection: Connection, digest: str) -> Principal | None:
        row = connection.execute(_FIND, {"token_hash": digest}).first()
        if row is None or row.revoked is not None:
            return None
        if row.expires is not None and row.expires <= self._database.now(connection):
            return None
        scopes = frozenset(Scope(scope) for scope in row.scopes.split())
        return Principal(row.label, (Grant(scopes, row.project_pattern, row.kind_pattern),))

    def register_admin(self, token: str, label: str) -> None:
        """Make ``token`` an admin token, unless it is known already: one that was revoked stays revoked. Blocks."""
        digest = token_hash(token)

        def register(session: Session) -> None:
            if session.get(TokenRow, digest) is None:
                session.add(
                    TokenRow(
                        token_hash=digest,
                        label=label,
                        scopes=str(Scope.ADMIN),
                        project_pattern="*",
                        kind_pattern="*",
                        created=self._database.now(session),
                        expires=None,
                        revoked=None,
                    )
                )

        # several servers register the same token when they start together
        self._database.upsert(register)

    def revoke(self, token_digest: str) -> bool:
        """Revoke the token of that hash for good; False if it is not known. Blocks."""
        with self._database.transaction() as session:
            row = session.get(TokenRow, token_digest)
            if row is None:
                return False
            if row.revoked is None:
                row.revoked = self._database.now(session)
        self._known.pop(token_digest, None)
        return True

    def any_usable(self) -> bool:
        """Return whether there is a token that opens anything. Blocks."""
        with self._database.reading() as connection:
            now = self._database.now(connection)
            statement = select(func.count()).where(
                TokenRow.revoked.is_(None), (TokenRow.expires.is_(None)) | (TokenRow.expires > now)
            )
            return connection.execute(statement).scalar_one() > 0
