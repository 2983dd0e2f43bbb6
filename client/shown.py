"""Addresses as they may be shown: people put keys and tokens into them; logs, terminals and exceptions keep them."""

from __future__ import annotations

import re

_HARMLESS = frozenset({"endpoint", "region", "addressing"})
"""What follows ? in a bucket's address, and holds no secret."""
_IS_PATH = re.compile(r"/|\.{1,2}/|~|file:")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9.+-]*://")


def shown_address(value: str | None) -> str:
    """Return an address without what may be a secret: what stands before an @, and values behind ? or #.

    ``none`` for None. A path is shown as it is.
    """
    if value is None:
        return "none"
    if _IS_PATH.match(value):
        return value
    address, hash_mark, _ = value.partition("#")
    address, question_mark, query = address.partition("?")
    scheme = _SCHEME.match(address)
    start = scheme.end() if scheme else 0
    shown = address[:start] + address[start:].rpartition("@")[2]
    if question_mark:
        shown += "?" + "&".join(map(_shown_setting, query.split("&")))
    return shown + ("#…" if hash_mark else "")


def _shown_setting(setting: str) -> str:
    name, _, value = setting.partition("=")
    if name in _HARMLESS:
        return f"{name}={shown_address(value)}"
    return f"{name}=…" if value and re.fullmatch(r"[A-Za-z_.-]{1,32}", name) else "…"
