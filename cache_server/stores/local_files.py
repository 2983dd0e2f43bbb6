"""Single files of the local store: an output held open, and bytes on their way in."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from cache_server.stores.base import StoreError, StoreFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cache_server.stores.base import Blob

FILE_MODE = 0o640
LASTING = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        *(errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EXDEV),
    }
)
"""What an operator must mend. What a file server or a disk in trouble says (EIO, ESTALE, ENOTCONN), may pass."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn what the operating system says into the store's own errors."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFullError(f"{what}: {error.strerror}") from error
        raise StoreError(f"{what}: {error.strerror or error}", lasting=error.errno in LASTING) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


PIECE = 256 << 10
"""Bytes that are read at once. Larger pieces take fresh pages each time: with 1 MiB four readers get half as much."""


class LocalOutput:
    """An open output. Its descriptor keeps the bytes alive when the file is unlinked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.stored_size = os.fstat(descriptor).st_size

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield stored bytes ``start`` to ``stop`` in pieces of at most `PIECE`."""
        end = self.stored_size if stop is None else min(stop, self.stored_size)
        while start < end:
            with store_errors("reading an output"):
                data = os.pread(self._descriptor, min(PIECE, end - start), start)
            if not data:
                raise StoreError("an output became shorter while it was read")
            start += len(data)
            yield data

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalUpload:
    """Bytes in a temporary file of the same file system, linked to their name when they are durable.

    ``link`` links a file to a name in a folder, given by its path below the root, and returns False if it is taken.
    """

    def __init__(self, path: Path, link: Callable[[Path, str, str], bool]) -> None:
        self._path = path
        self._link = link
        with store_errors("beginning an upload"):
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data)
        with store_errors("writing an upload"):
            while view:
                view = view[os.write(self._descriptor, view) :]

    def commit(self, blob: Blob) -> bool:
        """Flush to the disk, then link to the output's name."""
        return self.commit_as(blob.address.path, blob.file_name)

    def commit_as(self, folder: str, file_name: str) -> bool:
        """Flush to the disk, then link to any name in a folder below the root."""
        try:
            with store_errors("storing a file"):
                os.fsync(self._descriptor)
                return self._link(self._path, folder, file_name)
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove the temporary file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            with contextlib.suppress(OSError):
                self._path.unlink()
