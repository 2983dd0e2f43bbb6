"""Times as they are written down."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Return seconds since the epoch as ``2026-11-29T23:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def folder_stamp(seconds: float) -> str:
    """Return seconds since the epoch as a folder's name that sorts by time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
