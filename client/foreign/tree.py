"""Files below a directory that others write: listed and read without following a link, and from known owners only.

A program out of such a directory is code that jobs run. Each level is opened from the one above it, so that nobody can
turn a checked path into another one, and everything must belong to this user, to root, or to the owner of the root.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from client.errors import ConfigurationError, NeffCacheError
from client.foreign.layout import TEMPORARY_PREFIX
from client.node.files import Files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_FILE = 4 << 30
"""Bytes of the largest file that is read: it is held in memory whole."""
_MAX_DEPTH = 6


class Listed(NamedTuple):
    """A file: its path below the root, bytes, seconds since the epoch of its last change.

    ``refusal`` says why it may not be read, "" if it may.
    """

    path: str
    size: int
    modified: float
    refusal: str = ""


class UnreadableError(NeffCacheError):
    """A file that is not there any more, may not be read, or changed meanwhile; the message says which."""


class Tree(Protocol):
    """Where another cache keeps its entries."""

    @property
    def address(self) -> str:
        """Where it is, as shown to people."""

    def files(self) -> Iterator[Listed]:
        """Yield all files; what vanishes meanwhile is passed over.

        Raises `ConfigurationError` if the root cannot be read, `client.errors.TransportError` of a bucket.
        """

    def read(self, file: Listed) -> bytes:
        """Return the file's bytes, as they were listed; raises `UnreadableError`, `TransportError` of a bucket."""

    def close(self) -> None:
        """Drop connections."""


class FolderTree:
    """A directory. ``any_owner`` takes files of any user."""

    def __init__(self, root: Path, *, any_owner: bool = False, files: Files | None = None) -> None:
        self.root = root
        self._any_owner = any_owner
        self._files = files or Files()

    @property
    def address(self) -> str:
        """See `Tree.address`."""
        return str(self.root)

    def files(self) -> Iterator[Listed]:
        """See `Tree.files`. The root itself may be a link; what lies below is never followed."""
        with self._opened() as (descriptor, owner):
            yield from self._below(descriptor, "", owner, _MAX_DEPTH)

    def read(self, file: Listed) -> bytes:
        """See `Tree.read`."""
        files = self._files
        *folders, name = file.path.split("/")
        with self._opened() as (root, owner):
            directory = os.dup(root)
            try:
                for folder in folders:
                    below = files.open_directory(folder, directory)
                    files.close(directory)
                    directory = below
                    self._check(files.status(directory), owner, file.path)
                descriptor = files.open_file(name, directory)
            except OSError as error:
                raise UnreadableError(f"{file.path} cannot be read: {error.strerror}") from error
            finally:
                files.close(directory)
            try:
                return self._read(descriptor, owner, file)
            except OSError as error:
                raise UnreadableError(f"{file.path} cannot be read: {error.strerror}") from error
            finally:
                files.close(descriptor)

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def _read(self, descriptor: int, owner: int, file: Listed) -> bytes:
        before = self._files.status(descriptor)
        self._check(before, owner, file.path)
        if not stat.S_ISREG(before.st_mode):
            raise UnreadableError(f"{file.path} is no regular file")
        content = self._files.read(descriptor, min(before.st_size, MAX_FILE) + 1)
        after = self._files.status(descriptor)
        if {(file.size, file.modified)} != {(len(content), before.st_mtime), (after.st_size, after.st_mtime)}:
            raise UnreadableError(f"{file.path} changed while it was read")
        return content

    @contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        """Give the root's descriptor and its owner."""
        try:
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigurationError(f"{self.root} cannot be read: {error.strerror}") from error
        try:
            yield descriptor, self._files.status(descriptor).st_uid
        finally:
            self._files.close(descriptor)

    def _below(self, directory: int, prefix: str, owner: int, depth: int) -> Iterator[Listed]:
        files = self._files
        for name in sorted(files.list(directory)):
            if name.startswith(TEMPORARY_PREFIX):
                continue
            path = f"{prefix}{name}"
            try:
                status = files.status_of(name, directory)
            except OSError:
                continue
            refusal = self._refusal(status, owner)
            if refusal or not stat.S_ISDIR(status.st_mode):
                yield Listed(path, status.st_size, status.st_mtime, refusal or _unfit(status))
            elif depth == 0:
                yield Listed(path, 0, status.st_mtime, "lies deeper than any cache keeps files")
            else:
                with suppress(FileNotFoundError, NotADirectoryError):
                    below = files.open_directory(name, directory)
                    try:
                        yield from self._below(below, f"{path}/", owner, depth - 1)
                    finally:
                        files.close(below)

    def _refusal(self, status: os.stat_result, owner: int) -> str:
        if self._any_owner or status.st_uid in {os.geteuid(), 0, owner}:
            return ""
        return f"belongs to user {status.st_uid}: --any-owner takes it"

    def _check(self, status: os.stat_result, owner: int, path: str) -> None:
        refusal = self._refusal(status, owner)
        if refusal:
            raise UnreadableError(f"{path} {refusal}")


def _unfit(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    return f"is larger than {MAX_FILE} bytes" if status.st_size > MAX_FILE else ""
