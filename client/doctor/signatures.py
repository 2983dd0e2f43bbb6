"""Whose entries are believed here, and whether what is published here would be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.doctor.base import Finding, note, ok, problem
from client.errors import ConfigurationError
from client.signing.job import check_own
from client.signing.keys import PrivateKey
from client.signing.notice import is_elsewhere
from client.signing.trust import TrustList, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from client.doctor.base import Surroundings
    from client.settings import Settings

_SOON = 14 * 86400.0
"""Seconds before a key retires in which that is worth a word."""


def check(surroundings: Surroundings) -> Iterator[Finding]:
    """Read the list and the key as a job would."""
    settings = surroundings.settings
    mode = settings.signature_mode
    if settings.trusted_keys is not None:
        yield from _list(settings.trusted_keys, mode, surroundings.now())
    elif mode == "off":
        yield _unchecked(settings)
    else:
        yield problem(
            f"NEURON_CACHE_SIGNATURES={mode}, and nobody is trusted",
            "name a list of keys in NEURON_CACHE_TRUSTED_KEYS",
        )
    if settings.signing_key is not None:
        yield _key(settings, settings.signing_key, required=mode == "require")
    elif mode == "require" and settings.mode == "rw":
        yield note("what is compiled here is not signed, so that it is not shared", "set NEURON_CACHE_SIGNING_KEY")


def _unchecked(settings: Settings) -> Finding:
    if is_elsewhere(settings.url) and settings.signatures is None:
        return note(
            "programs from the shared cache are not authenticated",
            "name the keys you trust in NEURON_CACHE_TRUSTED_KEYS, see docs/trust.md",
        )
    return ok("signatures are not checked")


def _list(path: Path, mode: str, now: float) -> Iterator[Finding]:
    try:
        keys = TrustList.load(path).keys
    except ConfigurationError as error:
        yield problem(f"nobody is trusted: {error}", "repair the list, see docs/trust.md")
        return
    good = [key.name for key in keys if key.revoked is None]
    text = f"{mode}: {len(good)} keys are trusted ({', '.join(good[:5])}), {len(keys) - len(good)} are revoked"
    yield ok(text) if good else problem(text, "add keys with `neff-cache key trust`")
    for key in keys:
        if key.revoked is None and key.not_after is not None:
            left = parse_time(key.not_after).timestamp() - now
            if 0 < left < _SOON:
                yield note(f"{key.name} retires in {left / 86400:.0f} days", "see that its follower is in the list")


def _key(settings: Settings, path: Path, *, required: bool) -> Finding:
    try:
        key = PrivateKey.load(path)
        if required:
            check_own(key, settings)
    except ConfigurationError as error:
        return problem(str(error), "until then nothing is published from here")
    return ok(f"signs as {key.public.key_id}")
