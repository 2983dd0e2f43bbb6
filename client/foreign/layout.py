"""What a layout says: which files an entry has, what we call them, and when the other cache takes it for complete.

Layouts are tables and small rules over paths, so that they are the same for a directory and a bucket.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LOCK_SUFFIX = ".lock"
TEMPORARY_PREFIX = ".neff-cache-"
"""Begins the name of what we are still writing into another cache's directory; no cache takes it for one of its own."""
TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + "[0-9a-f]{16}")
"""Such a name in full: nothing else is ever removed from another cache's directory."""


class State(StrEnum):
    """How an entry stands in another cache's tree."""

    COMPLETE = "complete"
    FAILED = "failed"
    LOCKED = "locked"
    HALF = "half written"


class Place(NamedTuple):
    """Where a file belongs: the entry's name, and the file's own within the entry."""

    name: str
    file: str


class Layout(Protocol):
    """One cache's layout. ``files`` are those of one entry, by their own names."""

    @property
    def label(self) -> str:
        """What the command line calls it."""

    @property
    def kept_as(self) -> str:
        """What key documents call it: one of `client.foreign.names.PATTERNS`."""

    @property
    def marker(self) -> str | None:
        """The empty file that makes an entry complete, if there is one; never stored, and always made last."""

    @property
    def is_single(self) -> bool:
        """Whether an entry is one file in a folder that it shares with others, and not a folder of its own."""

    @property
    def names_compiler(self) -> bool:
        """Whether an entry's name holds the version of the compiler that built it."""

    def place(self, path: str) -> Place | None:
        """Return what a path below the cache's root is; None: nothing of this layout."""

    def folder(self, name: str) -> str:
        """Return the folder, below the cache's root, that holds the entry's files."""

    def outputs(self, name: str) -> Mapping[str, str]:
        """Return what may be stored of an entry: output names by file names. The NEFF is `MAIN_OUTPUT`."""

    def state(self, name: str, files: Collection[str]) -> State:
        """Return how an entry with these files stands."""

    def compiler_version(self, name: str) -> str | None:
        """Return the compiler's version if the name holds it."""


def is_lock(file: str) -> bool:
    """Return whether a file stands there while somebody compiles (all of these caches call it so)."""
    return file.endswith(LOCK_SUFFIX)
