"""Conditional and range requests on immutable bytes (RFC 9110, sections 8.8.3, 13 and 14)."""

from __future__ import annotations

import re
from typing import NamedTuple

from cache_server.errors import Problem

_TAG = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_WEIGHT = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")
_RANGE = re.compile(r"bytes=[ \t]*(\d{0,19})-(\d{0,19})[ \t]*", re.IGNORECASE)


class Span(NamedTuple):
    """Bytes ``start`` to ``stop``, the latter not included."""

    start: int
    stop: int


def matches(condition: str, tag: str, *, strong: bool) -> bool:
    """Return whether an If-Match or If-None-Match value names ``tag`` (with its quotes, never weak)."""
    if condition.strip() == "*":
        return True
    return any(found == tag and not (strong and weak) for weak, found in _TAG.findall(condition))


def check_if_match(condition: str | None, tag: str) -> None:
    """Raise `Problem` ``precondition_failed`` unless the condition is absent or names ``tag``."""
    if condition is not None and not matches(condition, tag, strong=True):
        raise Problem("precondition_failed")


def check_before_put(if_match: str | None, if_none_match: str | None, tag: str | None) -> None:
    """Raise `Problem` ``precondition_failed`` if a condition does not hold; ``tag`` is the stored one's, if any is."""
    if if_match is not None and (tag is None or not matches(if_match, tag, strong=True)):
        raise Problem("precondition_failed")
    if if_none_match is not None and tag is not None and matches(if_none_match, tag, strong=False):
        raise Problem("precondition_failed")


def tag_of(sha256: str, *, compressed: bool) -> str:
    """Return the entity tag, quotes included, of an output sent plain or as a zstd frame."""
    return f'"{sha256}-zstd"' if compressed else f'"{sha256}"'


def wanted_span(range_header: str | None, if_range: str | None, tag: str, size: int) -> Span | None:
    """Return the part that is asked for, or None for the whole.

    Several ranges, and units other than bytes, are answered with the whole, as section 14.2 allows. Raises `Problem`
    ``range_not_satisfiable`` for one that lies outside.
    """
    if range_header is None or (if_range is not None and if_range.strip() != tag):
        return None
    match = _RANGE.fullmatch(range_header)
    if match is None or not (match[1] or match[2]):
        return None
    if match[1]:
        start = int(match[1])
        stop = int(match[2]) + 1 if match[2] else size
        if match[2] and stop <= start:
            return None
    elif not size and int(match[2]):
        # satisfiable, but no Content-Range can say what of nothing is sent
        return None
    else:
        start, stop = max(size - int(match[2]), 0), size
    if start >= size:
        raise Problem("range_not_satisfiable", headers={"Content-Range": f"bytes */{size}"})
    return Span(start, min(stop, size))


def accepts_zstd(accept_encoding: str | None) -> bool:
    """Return whether an Accept-Encoding value names zstd with a weight above zero, and not below that of identity.

    What it does not name is not sent: identity is always understood. A weight that is none counts as 1.
    """
    weights: dict[str, float] = {}
    for part in (accept_encoding or "").lower().split(","):
        coding, _, parameters = part.partition(";")
        weight = _WEIGHT.fullmatch("".join(parameters.split()))
        weights[coding.strip()] = float(weight[1]) if weight else 1.0
    every = weights.get("*", 0.0)
    return 0 < weights.get("zstd", every) >= weights.get("identity", every)
