"""Keeps a node tier within its bounds: least recently used entries go first, in batches, and rarely.

The tier is measured as a whole only when that is due: processes add what they write to ``<root>/v1/usage``, whose
first line is the last measurement, and the one that finds the sum beyond the bound (or no sum at all) measures anew
and evicts. Only one at a time does so. What nobody has used for too long goes once a day: the time of the lock file
``<root>/v1/sweep.lock`` is that of the last sweep.

Only what we could have made is looked at, let alone removed: `client.node.ownership` says by which names it is known.
An entry is renamed away before its files go, so nobody ever finds half of one; readers hold whole programs in memory,
so taking one that is being read costs at most a miss.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.names import Kind, is_project
from client.node.files import is_directory
from client.node.ownership import (
    ENTRY_FILES,
    LOCKS,
    TEMPORARY,
    is_bad,
    is_entry,
    is_lock_file,
    is_prefix,
    is_temporary,
)
from client.node.permissions import UntrustedError
from client.node.tree import LAYOUT, unique_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.node.permissions import Trust
    from client.node.tree import Tree

USAGE = "usage"
MAX_USAGE = 64 << 10
"""Bytes of that file after which it is written anew."""
SWEEP_LOCK = "sweep.lock"
LOW_WATER = 0.9
"""Share of the bound that an eviction leaves, so that the next one is far away."""
BLOCK = 4096
"""Bytes that a file takes on disk beside its content."""
DAY = 86400.0
FREE_INODES = 0.02
"""Share of a file system's inodes that is left to others."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An entry as eviction sees it: time of last use, size in bytes, path from the layout's directory."""

    used: float
    size: int
    names: tuple[str, ...]


class Evictor:
    """The bounds of one node tier, over all its projects. Safe to use from several threads and processes.

    ``max_age`` is for how many seconds an entry stays that nobody uses. No method raises: an eviction that cannot be
    done is left to the next one.
    """

    def __init__(
        self, tree: Tree, max_bytes: int, *, max_age: float = math.inf, now: Callable[[], float] = time.time
    ) -> None:
        self._tree = tree
        self._files = tree.files
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._now = now

    def written(self, size: int) -> None:
        """Note an entry of ``size`` bytes that was stored just now, and evict if a bound is passed."""
        total = self._add(size + 2 * BLOCK)
        if total is None or total > self._max_bytes or self._is_due():
            self.sweep()

    def make_room(self, size: int) -> bool:
        """Evict after the file system was full: a tenth of the tier or twice ``size``; say whether anything went."""
        return self.sweep(free=max(2 * size, 1)) > 0

    def sweep(self, *, free: int = 0) -> int:
        """Measure the tier and evict what is over a bound, at least ``free`` bytes; return the bytes evicted."""
        try:
            with self._tree.directory(make=True) as (top, trust):
                lock = self._tree.open_lock_file(SWEEP_LOCK, top, trust)
                try:
                    if not self._mine(lock):
                        return 0
                    with suppress(OSError):
                        self._files.touch(lock)
                    return self._sweep(free)
                finally:
                    self._files.close(lock)
        except (OSError, UntrustedError):
            return 0

    def _mine(self, lock: int) -> bool:
        try:
            return self._files.lock(lock)
        except OSError:
            return True  # no locks here: two sweeps at once only do the same work twice

    def _is_due(self) -> bool:
        """Whether the last sweep was more than a day ago, or never; a clock that was wrong then counts as never."""
        if math.isinf(self._max_age):
            return False
        try:
            with self._tree.directory() as (top, _):
                return abs(self._now() - self._files.status_of(SWEEP_LOCK, top).st_mtime) > DAY
        except FileNotFoundError:
            return True
        except (OSError, UntrustedError):
            return False

    def _sweep(self, free: int) -> int:
        items = sorted(self._items(), key=lambda item: item.used)
        total = sum(item.size for item in items)
        excess = 0
        if total > self._max_bytes:
            excess = total - int(self._max_bytes * LOW_WATER)
        if free:
            excess = max(excess, free, total // 10)
        count = math.ceil(len(items) / 10) if self._short_of_inodes() else 0
        oldest = self._now() - self._max_age
        evicted = gone = 0
        for item in items:
            if evicted >= excess and gone >= count and item.used >= oldest:
                break
            if self._evict(item):
                evicted += item.size
                gone += 1
        self._note(total - evicted)
        return evicted

    def _items(self) -> Iterator[_Item]:
        """Walk over all entries, and remove what killed processes left behind."""
        for project in filter(is_project, self._children()):
            for kind in frozenset[str](Kind).intersection(self._children(project)):
                for name in self._children(project, kind):
                    if name == LOCKS or is_bad(name):
                        self._tidy(name, project, kind)
                    elif is_prefix(name):
                        yield from self._entries(project, kind, name)

    def _entries(self, project: str, kind: str, prefix: str) -> Iterator[_Item]:
        with suppress(OSError, UntrustedError), self._tree.directory(project, kind, prefix) as (parent, _):
            for key in self._files.list(parent):
                with suppress(OSError):
                    used = self._files.status_of(key, parent).st_mtime
                    if is_entry(key, prefix):
                        size = self._size(key, parent)
                        if size is not None:
                            yield _Item(used, size, (project, kind, prefix, key))
                    elif is_temporary(key) and self._now() - used > DAY:
                        self._tree.remove(key, parent)

    def _size(self, name: str, parent: int) -> int | None:
        """Return the bytes of an entry; None if something lies in its folder that is not ours."""
        descriptor = self._files.open_directory(name, parent)
        try:
            names = self._files.list(descriptor)
            if not ENTRY_FILES.issuperset(names):
                return None
            return sum(self._files.status_of(child, descriptor).st_size + BLOCK for child in names)
        finally:
            self._files.close(descriptor)

    def _tidy(self, name: str, project: str, kind: str) -> None:
        """Remove a damaged entry after a week, and locks and failures of processes that are gone after a day."""
        with suppress(OSError, UntrustedError), self._tree.directory(project, kind) as (namespace, _):
            if name != LOCKS:
                if self._now() - self._files.status_of(name, namespace).st_ctime > 7 * DAY:
                    self._tree.remove(name, namespace)
                return
            with self._tree.directory(project, kind, LOCKS) as (locks, trust):
                for left in filter(is_lock_file, self._files.list(locks)):
                    if self._now() - self._files.status_of(left, locks).st_mtime > DAY:
                        self._remove_unlocked(left, locks, trust)

    def _remove_unlocked(self, name: str, locks: int, trust: Trust) -> None:
        descriptor = self._tree.open_lock_file(name, locks, trust)
        try:
            if self._files.lock(descriptor):
                self._files.unlink(name, locks)
        finally:
            self._files.close(descriptor)

    def _evict(self, item: _Item) -> bool:
        *above, key = item.names
        try:
            with self._tree.directory(*above) as (parent, _):
                doomed = unique_name(TEMPORARY)
                self._files.rename(key, doomed, parent)
                self._tree.remove(doomed, parent)
        except (OSError, UntrustedError):
            return False
        return True

    def _children(self, *names: str) -> list[str]:
        """Return the directories below a level; a level that cannot be read has none."""
        found: list[str] = []
        with suppress(OSError, UntrustedError), self._tree.directory(*names) as (descriptor, _):
            for name in self._files.list(descriptor):
                with suppress(OSError):
                    if is_directory(self._files.status_of(name, descriptor)):
                        found.append(name)
        return found

    def _short_of_inodes(self) -> bool:
        with suppress(OSError, UntrustedError), self._tree.directory() as (top, _):
            space = self._files.space(top)
            return space.f_files > 0 and space.f_favail < space.f_files * FREE_INODES
        return False

    def _add(self, size: int) -> int | None:
        """Add to the usage and return its sum in bytes; None if it has to be measured anew."""
        try:
            with self._tree.directory() as (top, trust):
                descriptor = self._files.open_appending(USAGE, top)
                try:
                    trust.check(self._files.status(descriptor), f"{LAYOUT}/{USAGE}")
                    self._files.write(descriptor, b"%d\n" % size)
                    lines = self._files.read(descriptor, MAX_USAGE)
                finally:
                    self._files.close(descriptor)
            return None if len(lines) >= MAX_USAGE else sum(map(int, lines.split()))
        except (OSError, UntrustedError, ValueError):
            return None

    def _note(self, total: int) -> None:
        with suppress(OSError, UntrustedError), self._tree.directory() as (top, trust):
            self._tree.replace_file(USAGE, top, trust, b"%d\n" % total)
