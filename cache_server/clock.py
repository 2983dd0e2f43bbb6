"""Times as they are written down."""

from __future__ import annotations

from datetime import UTC, datetime


def is_far(when: float, seconds: float, now: float) -> bool:
    """Return whether ``when`` lies more than ``seconds`` from now.

    In the past: it is old. In the future: a clock was wrong when it was written down, and nothing may live for ever
    because of that.
    """
    return abs(now - when) > seconds


def rfc3339(seconds: float) -> str:
    """Return seconds since the epoch as ``2026-11-29T23:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def folder_stamp(seconds: float) -> str:
    """Return seconds since the epoch as a folder's name that sorts by time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
