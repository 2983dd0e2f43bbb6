"""The public keys of one issuer (RFC 7517): kept, fetched again when they are old or a new one is asked for."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jwt.algorithms import AllowedPublicKeys

MIN_RSA_BITS = 2048
MAX_KEYS = 100
ASK_AGAIN_SECONDS = 60.0
"""An unknown key's name makes us fetch at most this often: whoever invents names cannot have us hammer an issuer."""
HURRY_SECONDS = 10.0
"""How often to try while there are no keys at all."""

FORMS: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Key type and curve that an algorithm takes (RFC 7518, RFC 8037)."""

_log = structlog.get_logger("cache_server.identity")


@dataclass(frozen=True, slots=True)
class Key:
    """A public key. ``algorithm`` is the only one it is for, if its owner says so."""

    kid: str | None
    form: tuple[str, str | None]
    algorithm: str | None
    public: AllowedPublicKeys

    def suits(self, algorithm: str) -> bool:
        """Return whether a signature by ``algorithm`` may be checked with it."""
        return FORMS.get(algorithm) == self.form and self.algorithm in {None, algorithm}


def parse_keys(raw: bytes, owner: str) -> tuple[Key, ...]:
    """Return the usable keys of a JWK set; raises ValueError if it is none or none of its keys is usable."""
    try:
        value = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    members = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(members, list) or len(members) > MAX_KEYS:
        raise ValueError(f"it is no JWK set of at most {MAX_KEYS} keys")
    keys: list[Key] = []
    for member in members:
        try:
            keys.append(_parse_key(member))
        except ValueError as error:
            kid = member.get("kid") if isinstance(member, dict) else None
            _log.info("key left out", issuer=owner, kid=str(kid)[:64], reason=str(error))
    if not keys:
        raise ValueError("it holds no key that can be used")
    return tuple(keys)


def _parse_key(value: Any) -> Key:
    """Return a key; raises ValueError for what can or should not verify signatures."""
    if not isinstance(value, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - one exception for all that is wrong with a document
    if value.get("use", "sig") != "sig" or "verify" not in value.get("key_ops", ["verify"]):
        raise ValueError("not for signatures")
    kind, curve = value.get("kty"), value.get("crv")
    form = next((taken for taken in FORMS.values() if taken == (kind, None if kind == "RSA" else curve)), None)
    if form is None:
        raise ValueError(f"of a kind that is not taken here: {kind} {curve or ''}".strip())
    if "d" in value:
        raise ValueError("a private key: everybody can sign with it")
    algorithm, kid = value.get("alg"), value.get("kid")
    if (algorithm is not None and FORMS.get(algorithm) != form) or not isinstance(kid, str | None):
        raise ValueError("its parts contradict each other")
    try:
        public = PyJWK(value, algorithm or next(name for name, taken in FORMS.items() if taken == form)).key
    except (PyJWTError, ValueError, TypeError) as error:
        raise ValueError(f"malformed: {error}") from error
    if isinstance(public, RSAPublicKey) and public.key_size < MIN_RSA_BITS:
        raise ValueError(f"only {public.key_size} bits: {MIN_RSA_BITS} are expected")
    return Key(kid, form, algorithm, public)


class KeySet:
    """The keys of ``owner``, fetched by ``fetch`` (raises OSError, ValueError or a client's error; never on the loop).

    Keys older than ``lifetime`` seconds are still used while they are fetched again, and those of an issuer that does
    not answer for ``keep`` seconds more. One fetch at a time; whoever waits for it holds no thread.
    """

    def __init__(
        self,
        owner: str,
        fetch: Callable[[], Awaitable[tuple[Key, ...]]],
        *,
        lifetime: float,
        keep: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner = owner
        self._fetch = fetch
        self._lifetime = lifetime
        self._keep = keep
        self._monotonic = monotonic
        self._keys: tuple[Key, ...] = ()
        self._fetched = float("-inf")
        self._tried = float("-inf")
        self._running: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> tuple[Key, ...]:
        """Return the keys called ``kid`` that suit the algorithm; without a name only a key that is the only one."""
        found = self._held(kid, algorithm)
        if found:
            if self._age() > self._lifetime:
                self._refresh()
            return found
        running = self._refresh()
        if running is not None:
            await asyncio.shield(running)
        return self._held(kid, algorithm)

    async def warm_up(self) -> None:
        """Fetch the keys for the first time."""
        running = self._refresh()
        if running is not None:
            await asyncio.shield(running)

    def _age(self) -> float:
        return self._monotonic() - self._fetched

    def _held(self, kid: str | None, algorithm: str) -> tuple[Key, ...]:
        if self._age() > self._lifetime + self._keep:
            return ()
        found = tuple(key for key in self._keys if key.suits(algorithm) and (kid is None or key.kid == kid))
        return () if kid is None and len(found) > 1 else found

    def _refresh(self) -> asyncio.Task[None] | None:
        """Begin to fetch, unless that was tried a moment ago; return the fetch that is under way, None if none is."""
        if self._running is None:
            pause = ASK_AGAIN_SECONDS if self._keys else HURRY_SECONDS
            if self._monotonic() - self._tried < pause:
                return None
            self._running = asyncio.create_task(self._fetch_once())
        return self._running

    async def _fetch_once(self) -> None:
        try:
            self._keys = await self._fetch()
            self._fetched = self._monotonic()
        except Exception as error:  # noqa: BLE001 - an issuer's fault is no fault of the request: it is not let in
            held = len(self._keys) if self._age() <= self._lifetime + self._keep else 0
            _log.warning("keys not fetched", issuer=self._owner, reason=str(error) or repr(error), keys_held=held)
        finally:
            self._tried = self._monotonic()
            self._running = None
