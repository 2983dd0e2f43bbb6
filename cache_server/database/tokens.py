"""Tokens as requests find them: an index of what policy says, and when each was last used."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sqlalchemy import bindparam, func, select, update

from cache_server.access import EVERY, Grant, Scope
from cache_server.clock import rfc3339
from cache_server.database.models import TokenRow
from cache_server.grants import grant_from_json, grant_to_json
from cache_server.weak_tokens import VOID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from client.wire import Json

    State: TypeAlias = Literal["valid", "expired", "revoked", "void"]

_ID_DIGITS = 12
_ID = re.compile(f"[0-9a-f]{{{_ID_DIGITS}}}")
_FIND = select(TokenRow.__table__).where(TokenRow.token_hash == bindparam("token_hash"))


def public_id(digest: str) -> str:
    """Return what a token is called by: the first digits of its hash, the same on every server."""
    return digest[:_ID_DIGITS]


def is_public_id(text: str) -> bool:
    """Return whether a token can be called so."""
    return _ID.fullmatch(text) is not None


def find(connection: Connection, digest: str) -> Any | None:
    """Return the row of the token with that hash."""
    return connection.execute(_FIND, {"token_hash": digest}).first()


def named(session: Session, public_id: str) -> TokenRow | None:
    """Return the token called so, with its row locked."""
    statement = select(TokenRow).where(TokenRow.token_hash.startswith(public_id)).with_for_update()
    return session.execute(statement).scalar_one_or_none()


def every(connection: Connection) -> Sequence[Any]:
    """Return all tokens, the oldest first."""
    return connection.execute(select(TokenRow.__table__).order_by(TokenRow.created, TokenRow.token_hash)).all()


def open_to_all(connection: Connection) -> Sequence[Any]:
    """Return the tokens that anybody could have used and that nobody has revoked, the oldest first."""
    found = select(TokenRow.__table__).where(TokenRow.token_hash.in_(VOID), TokenRow.revoked.is_(None))
    return connection.execute(found.order_by(TokenRow.created, TokenRow.token_hash)).all()


def any_usable(connection: Connection, now: float) -> bool:
    """Return whether there is a token that opens anything."""
    open_now = (
        TokenRow.revoked.is_(None),
        (TokenRow.expires.is_(None)) | (TokenRow.expires > now),
        TokenRow.token_hash.not_in(VOID),
    )
    return connection.execute(select(func.count()).where(*open_now)).scalar_one() > 0


def state(row: Any, now: float) -> State:
    """Return whether the token opens anything now, and why not: ``void`` is one that anybody can guess."""
    if row.token_hash in VOID:
        return "void"
    if row.revoked is not None:
        return "revoked"
    return "expired" if row.expires is not None and row.expires <= now else "valid"


def grants(row: Any) -> tuple[Grant, ...]:
    """Return the token's grants."""
    if row.grants is not None:
        return tuple(map(grant_from_json, json.loads(row.grants)))
    # made by a server of the version before
    return (Grant(frozenset(map(Scope, row.scopes.split())), row.project_pattern, row.kind_pattern),)


def value(row: TokenRow) -> Json:
    """Return the token as policy holds it."""
    return {
        "label": row.label,
        "grants": [grant_to_json(grant) for grant in grants(row)],
        "created": row.created,
        "created_by": row.created_by,
        "expires": row.expires,
        "revoked": row.revoked,
        "rate": row.rate,
    }


def index(session: Session, digest: str, wanted: Json) -> None:
    """Have the index hold a token as policy says it is; when it was last used stays."""
    listed = wanted["grants"]
    # for servers of the version before, which know one grant a token: several open nothing there
    only = grant_from_json(listed[0]) if len(listed) == 1 else Grant(frozenset(), EVERY, EVERY)
    columns = {
        "label": wanted["label"],
        "scopes": " ".join(sorted(only.scopes)),
        "project_pattern": only.project_pattern,
        "kind_pattern": only.kind_pattern,
        "created": wanted["created"],
        "expires": wanted["expires"],
        "revoked": wanted["revoked"],
        "grants": json.dumps(listed),
        "created_by": wanted["created_by"],
        "rate": wanted["rate"],
    }
    row = session.get(TokenRow, digest)
    if row is None:
        session.add(TokenRow(token_hash=digest, **columns))
    else:
        for name, column in columns.items():
            setattr(row, name, column)
    session.flush()


def mark_used(session: Session, digests: Iterable[str], now: float) -> None:
    """Write down that tokens were used; in one order on all servers, so that no two of them wait for each other."""
    for digest in sorted(digests):
        session.execute(update(TokenRow).where(TokenRow.token_hash == digest).values(last_used=now))


def shown(row: Any, now: float) -> Json:
    """Return what anybody who may list tokens sees of one."""
    return {
        "id": public_id(row.token_hash),
        "label": row.label,
        "state": state(row, now),
        "grants": [grant_to_json(grant) for grant in grants(row)],
        "rate": row.rate,
        "created": rfc3339(row.created),
        "created_by": row.created_by,
        "expires": _when(row.expires),
        "revoked": _when(row.revoked),
        "last_used": _when(row.last_used),
    }


def _when(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)
