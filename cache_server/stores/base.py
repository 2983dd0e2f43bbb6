"""The seam between the server and where bytes lie: a local disk, a bucket.

Names are those of `client.layout`, the same everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from client.errors import NeffCacheError
from client.layout import meta_parts, meta_path, output_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cache_server.address import Address
    from client.wire import Encoding, Output

CHUNK = 1 << 20
"""Bytes read or written at once: large enough that one hop to a worker thread costs little beside it."""


class StoreError(NeffCacheError):
    """The store did not do what was asked; what it holds about the entry is unknown.

    ``lasting``: an operator must mend something; else the same call may succeed later.
    """

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class StoreFullError(StoreError):
    """No room left. Nothing was stored; reads go on."""


class Blob(NamedTuple):
    """One stored output of one key. Names come from `client.names`: never a path that leaves the entry's folder."""

    address: Address
    sha256: str
    encoding: Encoding = "identity"

    @classmethod
    def of(cls, address: Address, output: Output) -> Blob:
        """Return where ``output`` of the entry at ``address`` is stored."""
        return cls(address, output.sha256, output.encoding)

    @property
    def file_name(self) -> str:
        """The file's name in the entry's folder."""
        return output_file(self.sha256, self.encoding)


MAX_SMALL_OBJECT = 64 << 20
"""Bytes of the largest entry.json, or revision of policy, that is read into memory; a larger one is a `StoreError`."""


class StoredFile(NamedTuple):
    """A file in an entry's folder: name, bytes as stored, and seconds since the epoch of its last change."""

    name: str
    size: int
    modified: float


class MetaName(NamedTuple):
    """One revision of a row of policy."""

    table: str
    row: str
    revision: int

    @property
    def path(self) -> str:
        """Its path below the store's root; raises ValueError for a name that cannot stand there."""
        return meta_path(self.table, self.row, self.revision)

    @classmethod
    def parse(cls, path: str) -> MetaName | None:
        """Return the revision that lies at ``path``, or None if it is none."""
        parts = meta_parts(path)
        return None if parts is None else cls(*parts)


class OpenOutput(Protocol):
    """An output held open: what it reads stays whole even if the output is removed meanwhile."""

    @property
    def stored_size(self) -> int:
        """Bytes as stored."""

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield stored bytes ``start`` to ``stop`` in pieces of at most `CHUNK`; `StoreError` if they end early."""

    def close(self) -> None:
        """Free what is held; may be called twice."""


class Upload(Protocol):
    """Bytes on their way in. Exactly one of `commit` and `abort` ends it; `abort` after either does nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes as they are to be stored."""

    def commit(self, blob: Blob) -> bool:
        """Make the bytes durable as ``blob``, create-only: False if it was there already (ours are dropped)."""

    def abort(self) -> None:
        """Drop the bytes; leaves nothing behind."""


class Store(Protocol):
    """One object store. All methods block, so they run on worker threads; all are safe from several at once.

    Failure contract of every method: an absent object is None, False or nothing, never an exception; `StoreFullError`
    if there is no room; `StoreError` for anything that leaves the answer unknown (I/O error, no right, no connection),
    after which the call may be repeated. Writes are create-only and durable when the method returns: a crash of the
    machine afterwards loses nothing, a crash before it leaves the object absent or whole, never torn. What a crash
    leaves unreachable, `sweep_uploads` removes. Nothing here decides which entries exist: callers hold the key's lock
    for everything but uploads and reads.
    """

    @property
    def location(self) -> str:
        """Where it is, as shown to operators: never with a password."""

    def open(self) -> None:
        """Prepare and probe the store: create-only writes must work; `StoreError` says what does not."""

    def close(self) -> None:
        """Free what is held, when nobody uses the store any more."""

    def check(self) -> None:
        """Return if the store answers now, else raise `StoreError`."""

    def read_entry(self, address: Address) -> bytes | None:
        """Return the bytes of ``entry.json``, or None."""

    def create_entry(self, address: Address, data: bytes) -> bool:
        """Store ``entry.json``; False if one stands already, which is then unchanged."""

    def stored_size(self, blob: Blob) -> int | None:
        """Return the output's size in bytes as stored, or None."""

    def open_output(self, blob: Blob, *, fresh: bool = False) -> OpenOutput | None:
        """Open an output for reading, or return None.

        ``fresh``: over a new connection, from the disk itself: an error on the way is then not met again.
        """

    def first_bytes(self, blob: Blob, count: int) -> bytes | None:
        """Return the first ``count`` stored bytes of an output, all of them if it is shorter, or None."""

    def presign(self, blob: Blob, seconds: int) -> str | None:
        """Return a URL by which anyone reads the output for ``seconds``; None if only this server can read it."""

    def begin_upload(self, blob: Blob) -> Upload:
        """Begin to take in an output; `Upload.commit` gets the same ``blob``."""

    def files(self, address: Address) -> list[StoredFile]:
        """Return all files of the key, ``entry.json`` included, in no order."""

    def remove(self, address: Address, file_name: str) -> None:
        """Remove one file of the key; an absent one is no error."""

    def set_aside(self, address: Address, file_names: list[str], label: str) -> None:
        """Copy those of the files that exist to the quarantine, under ``label``; the files stay where they are."""

    def addresses(self) -> Iterator[Address]:
        """Yield every key that has a folder, while the store changes underneath; foreign names are passed over."""

    def create_meta(self, name: MetaName, data: bytes) -> bool:
        """Store a revision of a row of policy; False if it stands already, and is then unchanged."""

    def read_meta(self, name: MetaName) -> bytes | None:
        """Return the bytes of a revision, or None."""

    def meta(self, table: str = "", row: str = "") -> Iterator[MetaName]:
        """Yield all revisions, or those of one table, or of one row of it, in no order."""

    def free_bytes(self) -> int | None:
        """Return how many bytes there is room for, or None where no bound is known (a bucket)."""

    def walk(self) -> Iterator[StoredFile]:
        """Yield every file by its path below the root, those of one folder together; unfinished uploads left out."""

    def unfinished(self) -> Iterator[StoredFile]:
        """Yield uploads that did not end; names are for people, ``modified`` is what `sweep_uploads` goes by."""

    def sweep_uploads(self, before: float) -> int:
        """Remove uploads that ended before ``before`` (seconds since the epoch) without commit; return how many."""

    def sweep_quarantine(self, before: float) -> int:
        """Remove what was set aside before ``before`` (seconds since the epoch); return how many entries."""
