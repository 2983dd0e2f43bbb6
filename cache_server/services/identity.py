"""Callers known by an identity token: a JWT (RFC 7519) that an issuer of the identity file signed for us.

Only what the operator's file says decides: issuer, audience, algorithms, where keys are. What a token says about that
(``jwk``, ``jku``, ``x5u``, ``x5c``) is never looked at. A token that is refused is one line in the log, with the
reason; its caller learns only that it is refused.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from jwt import PyJWS
from jwt.exceptions import PyJWTError

from cache_server.access import Principal
from cache_server.services.claims import grants, shown
from cache_server.services.jwks import KeySet
from cache_server.services.key_fetching import fetch_keys
from cache_server.services.tokens import token_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.identity_file import IdentityFile, Issuer
    from cache_server.services.claims import Rule
    from cache_server.services.jwks import Key
    from cache_server.workers import Workers

MAX_TOKEN = 16 * 1024
"""Characters. Real ones have one or two thousand."""
KNOWN_SECONDS = 60.0
"""How long a token is not verified again: so long a key that is withdrawn may still count."""
_MOST_KNOWN = 4096
_MAX_KID = 256
_LAST_TIME = 1 << 40
_FORM = re.compile(r"eyJ[A-Za-z0-9_=-]*\.[A-Za-z0-9_=-]*\.[A-Za-z0-9_=-]*")
# RFC 8725, 3.11: a token made for another purpose, such as a logout, must not pass for one of identity.
_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})

_log = structlog.get_logger("cache_server.identity")


class _RefusedError(Exception):
    """The token is not taken; the message says why, without quoting it."""


@dataclass(frozen=True, slots=True)
class _Unverified:
    """What a token says of itself."""

    algorithm: str
    kid: str | None
    claims: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Trusted:
    issuer: Issuer
    rules: tuple[Rule, ...]
    keys: KeySet


class Identities:
    """The issuers of an identity file. ``now`` is the wall clock, in seconds since the epoch."""

    def __init__(
        self,
        file: IdentityFile,
        workers: Workers,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leeway = file.leeway_seconds
        self._workers = workers
        self._now = now
        self._monotonic = monotonic
        self._issuers = {
            issuer.issuer: _Trusted(
                issuer,
                issuer.rules(),
                KeySet(
                    issuer.name,
                    partial(workers.run, fetch_keys, issuer),
                    lifetime=file.jwks_seconds,
                    keep=file.keep_seconds,
                    monotonic=monotonic,
                ),
            )
            for issuer in file.issuer
        }
        self._jws = PyJWS()
        self._known: dict[str, tuple[float, Principal]] = {}

    def concerns(self, token: str) -> bool:
        """Return whether it has the form of an identity token."""
        return bool(self._issuers) and len(token) <= MAX_TOKEN and _FORM.fullmatch(token) is not None

    def remembered(self, token: str) -> Principal | None:
        """Return whose token this is if it was verified a moment ago."""
        known = self._known.get(token_hash(token))
        return known[1] if known is not None and self._monotonic() < known[0] else None

    async def warm_up(self) -> None:
        """Fetch all issuers' keys."""
        await asyncio.gather(*(trusted.keys.warm_up() for trusted in self._issuers.values()))

    async def principal(self, token: str) -> Principal | None:
        """Return whose token this is, None if it is refused."""
        alias = ""
        try:
            said = _read(self._jws, token)
            trusted = self._issuers.get(str(said.claims.get("iss")))
            if trusted is None:
                raise _RefusedError("its issuer is not one of the identity file")  # noqa: TRY301 - joins all others
            alias = trusted.issuer.name
            if said.algorithm not in trusted.issuer.algorithms:
                raise _RefusedError(f"algorithm {said.algorithm[:16]!r} is not one of the issuer's")  # noqa: TRY301
            keys = await trusted.keys.find(said.kid, said.algorithm)
            await self._workers.run(self._verify, token, said.algorithm, keys)
            until = _check_claims(said.claims, trusted.issuer, self._now(), self._leeway)
        except _RefusedError as refused:
            _log.info("identity token refused", issuer=alias, reason=str(refused))
            return None
        name = shown(f"{alias}:{said.claims['sub']}")
        principal = Principal(name, grants(trusted.rules, said.claims))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        left = min(KNOWN_SECONDS, until - self._now())
        self._known[token_hash(token)] = (self._monotonic() + left, principal)
        return principal

    def _verify(self, token: str, algorithm: str, keys: tuple[Key, ...]) -> None:
        """Check the signature; raises `_RefusedError`."""
        if not keys:
            raise _RefusedError("there is no key of the issuer for it")
        reason = ""
        for key in keys:
            try:
                self._jws.decode_complete(token, key=key.public, algorithms=[algorithm])
            except (PyJWTError, ValueError) as error:
                reason = str(error)
            else:
                return
        raise _RefusedError(reason)


def _read(jws: PyJWS, token: str) -> _Unverified:
    """Take a token apart without believing it; raises `_RefusedError`."""
    try:
        parts = jws.decode_complete(token, options={"verify_signature": False})
        claims = json.loads(parts["payload"])
    except (PyJWTError, ValueError, RecursionError) as error:
        raise _RefusedError(f"it cannot be read: {error}") from error
    header = parts["header"]
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(claims, dict) or not isinstance(algorithm, str):
        raise _RefusedError("it cannot be read: no claims, or no algorithm")
    if "crit" in header:
        raise _RefusedError("it asks for extensions (crit), of which none is known here")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise _RefusedError("its type (typ) is not that of an identity or access token")
    if not isinstance(kid, str | None) or len(kid or "") > _MAX_KID:
        raise _RefusedError("its key's name (kid) is none")
    return _Unverified(algorithm, kid, claims)


def _check_claims(claims: dict[str, Any], issuer: Issuer, now: float, leeway: float) -> float:
    """Check all but the issuer, by which it was chosen; return when the token ends; raises `_RefusedError`."""
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if now >= expires + leeway:
        raise _RefusedError(f"it ran out {now - expires:.0f} s ago")
    not_before = _time(claims, "nbf") if "nbf" in claims else issued
    if max(not_before, issued) > now + leeway:
        raise _RefusedError("it is not valid yet: do the clocks differ?")
    audience = claims.get("aud")
    members = audience if isinstance(audience, list) else [audience]
    if not any(isinstance(member, str) and member in issuer.audience for member in members):
        raise _RefusedError("its audience is not the issuer's in the identity file")
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise _RefusedError("it names nobody (sub)")
    return expires + leeway


def _time(claims: dict[str, Any], name: str) -> float:
    """Return a claim that is a time (RFC 7519, NumericDate); raises `_RefusedError`."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LAST_TIME:
        raise _RefusedError(f"its {name} is no time")
    return value
