"""Tokens that open nothing, whatever the database holds: nothing at all, what is too short, what stands in examples.

An unset secret reaches a server as an empty variable, and a copied example as its placeholder. Whoever tries such a
token first would be an administrator.
"""

from __future__ import annotations

import hashlib
import re

from client.errors import ConfigurationError
from client.token import checked_token

SHORTEST = 16
"""Characters of a token. Those made here have 46; a shorter one can be tried out."""

_WORDS = (
    "password placeholder production bootstrap insecure example default replace changeit change secret please "
    "random string token admin first cache dummy value there insert your here text long test todo neff this with "
    "root fixme foo bar xxx set the abc 123 me my an to of a x"
)
# possessive: an operator's own text is either all placeholder or it is not, and is looked at once
_PLACEHOLDER = re.compile(f"(?:{'|'.join(_WORDS.split())})++")
_NO_LETTER = re.compile(r"[^a-z0-9]+")

_BLANKS = ("", " ", "\t", "\n", "\r\n", "\0")
_USUAL = (
    "admin", "bootstrap", "changeit", "changeme", "change-me", "change_me", "CHANGEME", "CHANGE_ME", "default",
    "example", "neff-cache", "null", "none", "None", "undefined", "password", "placeholder", "replace-me", "replaceme",
    "root", "secret", "test", "test-token", "todo", "TODO", "token", "your-token", "your-token-here", "xxx", "<token>",
    "a long random text", "a long random text, the first admin token", "nc_", "nc_…", '""', "''", "~",
    "${NEFF_CACHE_BOOTSTRAP_TOKEN}", "$NEFF_CACHE_BOOTSTRAP_TOKEN",
)  # fmt: skip


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


VOID = frozenset(map(_hash, (*_BLANKS, *_USUAL, *(f"{text}\n" for text in _USUAL))))
"""Hashes of tokens that a server of an earlier version took as its first one: their rows are void."""


def is_weak(token: str) -> bool:
    """Return whether somebody could guess the token."""
    bare = _NO_LETTER.sub("", token.lower())
    return len(token) < SHORTEST or len(bare) == 0 or _PLACEHOLDER.fullmatch(bare) is not None or _hash(token) in VOID


def check_secret(token: str, where: str) -> str:
    """Return a token that an operator chose; raises `ConfigurationError` for one that somebody could guess.

    ``where``: the setting it came from. The message never quotes the token.
    """
    if not token.strip():
        raise ConfigurationError(f"{where} is empty: {_ADVICE}, or leave it out")
    if len(token) < SHORTEST:
        raise ConfigurationError(f"{where} has {len(token)} characters, and at least {SHORTEST} are needed: {_ADVICE}")
    if is_weak(token):
        raise ConfigurationError(f"{where} is the placeholder of an example: {_ADVICE}")
    return checked_token(token, where)


_ADVICE = "give it a long random text, such as `openssl rand -hex 32` prints"
