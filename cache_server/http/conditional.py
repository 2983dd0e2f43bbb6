"""Conditional and range requests on immutable bytes (RFC 9110, sections 8.8.3, 13 and 14)."""

from __future__ import annotations

import re
from typing import NamedTuple

from cache_server.errors import Problem

_TAG = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_ZERO = re.compile(r"q=0(\.0{0,3})?")
_RANGE = re.compile(r"bytes=\s*(\d{0,19})-(\d{0,19})\s*")


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
    else:
        start, stop = max(size - int(match[2]), 0), size
    if start >= size:
        raise Problem("range_not_satisfiable", headers={"Content-Range": f"bytes */{size}"})
    return Span(start, min(stop, size))


def accepts_zstd(accept_encoding: str | None) -> bool:
    """Return whether an Accept-Encoding value names zstd with a weight above zero."""
    weights: dict[str, str] = {}
    for part in (accept_encoding or "").lower().split(","):
        coding, _, parameters = part.partition(";")
        weights[coding.strip()] = parameters.replace(" ", "")
    weight = weights.get("zstd", weights.get("*"))
    return weight is not None and not _ZERO.fullmatch(weight)
