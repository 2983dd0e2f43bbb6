"""The objects of one key in a shared bucket: its entry, its outputs, its direct lease, and what was set aside there."""

from __future__ import annotations

import io
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from client.errors import Unreachable
from client.layout import BAD_PREFIX, ENTRY_FILE, entry_folder
from client.transports.base import Published
from client.transports.direct_entry import MAX_SMALL_FILE, DirectEntry, Opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from _typeshed import WriteableBuffer

    from client.names import Kind
    from client.transports.s3_bucket import SharedBucket
    from client.wire import Entry


class S3Entry(DirectEntry):
    """One key's objects, for the use of one call: what is uploaded must begin before ``until``."""

    def __init__(self, bucket: SharedBucket, project: str, kind: Kind, key: str, *, until: float) -> None:
        super().__init__(project, kind, key)
        self._bucket = bucket
        self._until = until
        self._folder = entry_folder(project, kind, key)
        self._etags: dict[str, str] = {}
        self._in_parts = False

    @property
    def where(self) -> str:
        """The folder's URL, without its settings."""
        url = self._bucket.url
        return "/".join(part for part in (f"s3://{url.bucket}", url.prefix, self._folder) if part)

    def make(self) -> None:
        """Find out whether we may write, and whether names are kept to their first writer; there are no folders."""
        self._bucket.check_create_only()

    @contextmanager
    def open(self, name: str) -> Iterator[Opened | None]:
        """Ask for an object; its bytes are read as they come in."""
        with self._bucket.open(self._path(name)) as reader:
            yield None if reader is None else Opened(_Body(reader.chunks()), reader.size)

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes, or None."""
        return self._bucket.size(self._path(name))

    def store(self, name: str, data: bytes) -> bool:
        """Create an object; a large output in parts, an entry's description in one request whatever its size."""
        if name == ENTRY_FILE:
            return self._bucket.create(self._path(name), data)
        self._in_parts = self._in_parts or self._bucket.in_parts(data)
        return self._bucket.upload(self._path(name), data, until=self._until)

    def set_aside(self, *names: str) -> None:
        """Move objects below ``bad-<random>/`` beside them, in the order given; one that is gone is no error."""
        bad = f"{BAD_PREFIX}{secrets.token_hex(8)}"
        for name in names:
            self._bucket.move(self._path(name), self._path(f"{bad}/{name}"))

    def publish(self, entry: Entry, outputs: Mapping[str, bytes]) -> Published:
        """See `DirectEntry.publish`. An upload that was dropped because another entry came first is no failure."""
        try:
            return super().publish(entry, outputs)
        except Unreachable:
            stored = self.entry()
            if stored is None:
                raise
            return Published(stored, created=False)

    def remove_leftovers(self) -> None:
        """Drop unfinished uploads of outputs: the entry stands, so that they serve nobody, and parts are paid for."""
        if self._in_parts:
            self._bucket.abort_uploads(self._folder)

    # The lease's files

    def now(self) -> float:
        """Return the store's time in seconds."""
        return self._bucket.now()

    def names(self) -> list[str]:
        """Return the names of all objects here."""
        return self._bucket.names(self._folder)

    def read(self, name: str) -> tuple[bytes, float] | None:
        """Return a small object's bytes and the time of its last change, or None."""
        found = self._bucket.read(self._path(name), MAX_SMALL_FILE)
        if found is None:
            return None
        self._etags[name] = found.etag
        return found.data, found.changed

    def create(self, name: str, data: bytes) -> bool:
        """Create a small object; False if its name is taken."""
        return self._bucket.create(self._path(name), data)

    def replace(self, name: str, data: bytes) -> None:
        """Write a small object, over the state that was read here last; raises `LeaseLost` if it is another by now."""
        self._bucket.replace(self._path(name), data, self._etags.get(name))

    def remove(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        self._bucket.remove(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"


class _Body(io.RawIOBase):
    """The pieces of an answer's body as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
