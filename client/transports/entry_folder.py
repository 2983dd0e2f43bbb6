"""The folder of one key on a shared folder: its entry, its outputs, its direct lease, and what was set aside there."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from client.layout import BAD_PREFIX, entry_folder, is_temporary
from client.transports import shared_files
from client.transports.direct_entry import MAX_SMALL_FILE, DirectEntry, Opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.names import Kind
    from client.transports.direct_lease import Waiting
    from client.wire import Entry

_LEFTOVER_SECONDS = 24 * 3600.0
_CLAIM_SECONDS = 2.0
_CLAIM_POLL_SECONDS = 0.1


class EntryFolder(DirectEntry):
    """One key's folder below the root of ``files``."""

    def __init__(self, files: shared_files.SharedFolder, project: str, kind: Kind, key: str, waiting: Waiting) -> None:
        super().__init__(project, kind, key)
        self._files = files
        self._waiting = waiting
        self.path = files.root / entry_folder(project, kind, key)

    @property
    def where(self) -> str:
        """The folder's path."""
        return str(self.path)

    def make(self) -> None:
        """Make the folder, and find out how names are kept to their first writer in it."""
        self._files.make_folder(self.path)
        self._files.create_only(self.path)

    @contextmanager
    def open(self, name: str) -> Iterator[Opened | None]:
        """Open a regular file; None if it is not there, or is no regular file."""
        with shared_files.opened(self.path / name) as file:
            yield None if file is None else Opened(file, os.fstat(file.fileno()).st_size)

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None if it is not there."""
        with self.open(name) as opened:
            return None if opened is None else opened.size

    def store(self, name: str, data: bytes) -> bool:
        """Create a file whole, to survive a crash; False if there is one of that name."""
        return self._files.create(self.path / name, data)

    def _taken(self) -> Entry | None:
        """Return the entry whose name is taken; where names are claimed first, its bytes follow a moment later."""
        deadline = self._waiting.monotonic() + _CLAIM_SECONDS
        while (stored := self.entry()) is None and self._waiting.monotonic() < deadline:
            self._waiting.sleep(_CLAIM_POLL_SECONDS)
        return stored

    # What is left over

    def set_aside(self, *names: str) -> None:
        """Move files to a ``bad-<random>`` folder of their own, in the order given; one that is gone is no error."""
        bad = self.path / f"{BAD_PREFIX}{secrets.token_hex(8)}"
        self._files.make_folder(bad)
        for name in names:
            with shared_files.translated("set aside", self.path / name), suppress(FileNotFoundError):
                (self.path / name).rename(bad / name)

    def remove_leftovers(self) -> None:
        """Remove what killed writers left a day ago or earlier, by the clock that stamps files here."""
        leftovers = [self.path / name for name in self.names() if is_temporary(name)]
        now = self.now() if leftovers else 0.0
        for path in leftovers:
            with shared_files.translated("remove", path), suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_mtime + _LEFTOVER_SECONDS < now:
                    path.unlink()

    # The lease's files

    def now(self) -> float:
        """Return the time by the clock that stamps files here, in seconds."""
        return self._files.now(self.path)

    def names(self) -> list[str]:
        """Return the names of all files here."""
        with shared_files.translated("list", self.path), suppress(FileNotFoundError):
            return os.listdir(self.path)  # noqa: PTH208 - names are all that is wanted
        return []

    def read(self, name: str) -> tuple[bytes, float] | None:
        """Return a small file's bytes and the time of its last change, or None."""
        return shared_files.read(self.path / name, MAX_SMALL_FILE)

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file whole; False if its name is taken."""
        return self._files.create(self.path / name, data, durable=False)

    def replace(self, name: str, data: bytes) -> None:
        """Create a small file whole, or replace it."""
        self._files.replace(self.path / name, data)

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        self._files.remove(self.path / name)
