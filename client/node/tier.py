"""The node tier: compiled programs on this machine's disk, shared by its processes.

::

    <root>/v1/CACHEDIR.TAG                                            ours: see :mod:`client.node.ownership`
    <root>/v1/<project>/<kind>/<aa>/<key>/{entry.json, model.neff}    aa: the first two digits of the key
    <root>/v1/<project>/<kind>/<aa>/tmp-…                             being written
    <root>/v1/<project>/<kind>/bad-<key>-…                            damaged, set aside for a look, a few of them
    <root>/v1/<project>/<kind>/locks/                                 see :mod:`client.node.lock`

Correct without any lock: an entry is written under a unique name and renamed into place whole, and a reader verifies
the very buffer it hands out. Nothing is ever handed out as a path, so that no consumer can change the cache.
"""

from __future__ import annotations

import errno
import hashlib
import json
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.admission.memory import most_held
from client.encoding import MAX_SIZE
from client.names import MAIN_OUTPUT
from client.node.files import ABSENT, same_file
from client.node.ownership import BAD, TEMPORARY, is_bad
from client.node.permissions import UntrustedError
from client.node.place import open_files
from client.node.tree import Tree, unique_name
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from client.names import Kind
    from client.node.files import Files
    from client.node.permissions import Trust
    from client.signing.check import SignatureCheck

ENTRY_FILE = "entry.json"
MAX_BAD = 8
"""Damaged entries that are kept in a namespace for a look; older ones are removed."""
MAX_ENTRY_FILE = 4 << 20
LARGE = 1 << 30
"""Bytes from which on a program is compared with the memory that there is."""
TOUCH_AFTER = 60.0
"""Seconds for which the recorded time of last use is recent enough: reads write next to nothing."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry and the bytes of its program, whose digest was verified."""

    entry: Entry
    neff: bytes


class DamagedEntryError(Exception):
    """An entry's files are not what they claim to be; it was set aside if that was possible."""


class NodeTier:
    """One project's entries. Every method raises `OSError` as the file system does and `UntrustedError`.

    Safe to use from several threads and processes, and across a fork.
    """

    def __init__(
        self,
        root: Path,
        project: str,
        *,
        shared: bool = False,
        files: Files | None = None,
        now: Callable[[], float] = time.time,
        check: SignatureCheck | None = None,
    ) -> None:
        """``check``: what it does not admit is not there, and gives way to what it does."""
        self.tree = Tree(
            root, shared=shared, files=files or open_files(root), signed=check is not None and check.required
        )
        self.check = check
        self.project = project
        self._files = self.tree.files
        self._now = now

    def get(self, kind: Kind, key: str) -> Stored | None:
        """Return the entry, or None if it is not there.

        Raises `DamagedEntryError` if its files are not whole; by then it lies aside, and the key is free again.
        """
        for last in (False, True):
            try:
                stored = self._get(kind, key)
                return stored if stored is not None and self._admits(stored) else None
            except OSError as error:
                if error.errno == errno.ENOENT or (error.errno == errno.ESTALE and last):
                    return None
                if error.errno != errno.ESTALE:
                    raise
        return None

    def put(self, entry: Entry, neff: bytes) -> bool:
        """Store an entry whole, and say whether it is ours: False if one stands there already.

        Also False for one that could not be read again, because nobody vouches for it where that is required.
        """
        files = self._files
        if self.check is not None and self.check.required:
            if self.check.verdict(entry) is not None:
                return False
            self._clear_untrusted(entry.kind, entry.key)
        with self.tree.directory(self.project, entry.kind, entry.key[:2], make=True) as (parent, trust):
            if self._exists(entry.key, parent):
                return False
            temporary = unique_name(TEMPORARY)
            files.make_directory(temporary, parent, trust.directory_mode)
            try:
                self._fill(temporary, parent, trust, entry, neff)
                files.rename(temporary, entry.key, parent)
            except OSError:
                # somebody was first; or, on NFS, the rename was done and its answer lost: either way one stands there
                placed = not self._exists(temporary, parent)
                self.tree.remove(temporary, parent)
                if not self._exists(entry.key, parent):
                    raise
                return placed
            except BaseException:
                self.tree.remove(temporary, parent)
                raise
        return True

    def remove(self, kind: Kind, key: str) -> None:
        """Drop an entry, if it is there."""
        self.tree.claim(make=False)
        with suppress(FileNotFoundError), self.tree.directory(self.project, kind, key[:2]) as (parent, _):
            doomed = unique_name(TEMPORARY)
            self._files.rename(key, doomed, parent)
            self.tree.remove(doomed, parent)

    def _clear_untrusted(self, kind: Kind, key: str) -> None:
        """Remove an entry that is not admitted: it would keep those that are from this place."""
        with suppress(OSError, DamagedEntryError):
            stored = self._get(kind, key)
            if stored is not None and not self._admits(stored):
                self.remove(kind, key)

    def _admits(self, stored: Stored) -> bool:
        return self.check is None or self.check.admits(stored.entry, f"the node tier {self.tree.root}")

    def _get(self, kind: Kind, key: str) -> Stored | None:
        files = self._files
        with self.tree.directory(self.project, kind, key[:2], key) as (descriptor, trust):
            try:
                entry = self._read_entry(descriptor, trust, kind, key)
                neff = self._read_program(descriptor, trust, entry)
            except DamagedEntryError:
                if self._set_aside(descriptor, kind, key):
                    raise
                return None
            if self._now() - files.status(descriptor).st_mtime > TOUCH_AFTER:
                with suppress(OSError):  # a read-only tier
                    files.touch(descriptor)
        return Stored(entry, neff)

    def _read_entry(self, directory: int, trust: Trust, kind: Kind, key: str) -> Entry:
        raw = self._read(ENTRY_FILE, directory, trust, limit=MAX_ENTRY_FILE)
        try:
            entry = Entry.from_json(json.loads(raw))
        except (ValueError, RecursionError) as error:
            raise DamagedEntryError(f"{ENTRY_FILE} of {kind}/{key} cannot be read: {error}") from error
        if (entry.project, entry.kind, entry.key) != (self.project, kind, key):
            raise DamagedEntryError(f"{ENTRY_FILE} of {kind}/{key} is that of {entry.kind}/{entry.key}")
        return entry

    def _read_program(self, directory: int, trust: Trust, entry: Entry) -> bytes:
        output = entry.output()
        if output is None:
            raise DamagedEntryError(f"{entry.kind}/{entry.key} names no {MAIN_OUTPUT}")
        neff = self._read(MAIN_OUTPUT, directory, trust, limit=min(output.size, MAX_SIZE))
        if len(neff) != output.size or hashlib.sha256(neff).hexdigest() != output.sha256:
            raise DamagedEntryError(
                f"{MAIN_OUTPUT} of {entry.kind}/{entry.key} has not the digest that its entry names"
            )
        return neff

    def _read(self, name: str, directory: int, trust: Trust, *, limit: int) -> bytes:
        """Return the bytes of a trusted file, one more than ``limit`` at most; an absent one is damage."""
        files = self._files
        try:
            descriptor = files.open_file(name, directory)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                raise DamagedEntryError(f"{name} is missing or a symbolic link") from error
            raise
        try:
            status = files.status(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DamagedEntryError(f"{name} is no regular file")
            trust.check(status, name)
            if status.st_size > limit:
                raise DamagedEntryError(f"{name} is longer than it may be")
            if status.st_size > LARGE and status.st_size > most_held():
                raise OSError(errno.EFBIG, "more than half of this machine's memory", name)
            # never by the entry's word alone: memory for what it says is taken before anything is read
            return files.read(descriptor, status.st_size + 1)
        finally:
            files.close(descriptor)

    def _set_aside(self, damaged: int, kind: Kind, key: str) -> bool:
        """Move the opened, damaged entry out of the way; False if it is no longer the one that stands at ``key``."""
        files = self._files
        status = files.status(damaged)
        try:
            self.tree.claim(make=False)
        except (OSError, UntrustedError):
            return True  # not ours to change: it stays, and is found damaged again
        with (
            self.tree.directory(self.project, kind) as (namespace, _),
            self.tree.directory(self.project, kind, key[:2]) as (parent, _),
        ):
            aside = unique_name(f"{BAD}{key}-")
            try:
                if not same_file(files.status_of(key, parent), status):
                    return False
                files.rename(key, aside, parent, namespace)
                if not same_file(files.status_of(aside, namespace), status):
                    # between look and rename a whole entry took the place: put it back
                    files.rename(aside, key, namespace, parent)
                    return False
            except OSError as error:
                return error.errno not in ABSENT  # a read-only tier: it stays, and is found damaged again
            self._bound_bad(namespace)
        return True

    def _bound_bad(self, namespace: int) -> None:
        aged: list[tuple[float, str]] = []
        for name in self._files.list(namespace):
            if is_bad(name):
                with suppress(OSError):
                    aged.append((self._files.status_of(name, namespace).st_ctime, name))
        for _, name in sorted(aged)[:-MAX_BAD]:
            self.tree.remove(name, namespace)

    def _fill(self, temporary: str, parent: int, trust: Trust, entry: Entry, neff: bytes) -> None:
        files = self._files
        directory = files.open_directory(temporary, parent)
        try:
            if trust.widens:
                files.set_mode(directory, trust.directory_mode)
            self.tree.create_file(MAIN_OUTPUT, directory, trust, neff)
            described = json.dumps(entry.to_json(), separators=(",", ":")).encode()
            self.tree.create_file(ENTRY_FILE, directory, trust, described)
        finally:
            files.close(directory)

    def _exists(self, name: str, parent: int) -> bool:
        try:
            self._files.status_of(name, parent)
        except OSError as error:
            if error.errno in ABSENT:
                return False
            raise
        return True
