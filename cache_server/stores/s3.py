"""The store in a bucket: Amazon S3 or a store that is compatible with it, shared by any number of servers.

What makes it correct are two promises of S3: a read after a write sees it, and ``If-None-Match: *`` lets one writer
have a name. The second is not kept by every compatible store, so `S3Store.open` tries it.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from cache_server.address import Address
from cache_server.stores.base import MAX_SMALL_OBJECT, Blob, MetaName, StoredFile, StoreError, StoreFullError
from client.encoding import MAX_SIZE
from client.errors import WireError
from client.layout import (
    ENTRY_FILE,
    META,
    QUARANTINE,
    TEMPORARY_PREFIX,
    is_entry_file,
    is_quarantine_folder,
    quarantine_folder,
)
from client.names import Kind
from client.s3.bucket import Bucket
from client.s3.errors import Reason, S3Error
from client.s3.probe import probe
from client.s3.sdk import ConnectionSettings
from client.s3.upload import PART_SIZE, ObjectUpload, PartPool, part_size
from client.s3.url import BucketUrl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.s3.reader import ObjectReader
    from client.s3.retry import RetryPolicy

PART_THREADS = 4
_LASTING = frozenset({Reason.DENIED, Reason.NO_BUCKET, Reason.REFUSED, Reason.EXPIRED})
_RESERVE = 4
"""Connections beside those of worker and part threads: probes and health checks."""
_PROBE = re.compile(re.escape(TEMPORARY_PREFIX) + "[0-9a-f]{32}")
"""Slashes in quarantine/<project>/<kind>/<key>/<time>."""


def open_s3_store(
    url: str,
    *,
    threads: int = 16,
    part_threads: int = PART_THREADS,
    largest: int = MAX_SIZE,
    connect_seconds: float = 2.0,
    read_seconds: float = 10.0,
    policy: RetryPolicy | None = None,
) -> S3Store:
    """Return the store at ``s3://bucket/prefix[?endpoint=…&region=…]``; nothing is asked of it before `S3Store.open`.

    ``threads``: how many callers there are at once; ``part_threads``: how many parts of large outputs are sent at once
    beside them; ``largest``: bytes of the largest output. Raises `client.errors.ConfigurationError`.
    """
    settings = ConnectionSettings(connect_seconds, read_seconds, connections=threads + part_threads + _RESERVE)
    bucket = Bucket(BucketUrl.parse(url), settings=settings, policy=policy)
    return S3Store(bucket, part_threads=part_threads, size_of_parts=part_size(largest))


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """Turn what the bucket says into the store's own errors."""
    try:
        yield
    except S3Error as error:
        if error.reason is Reason.FULL:
            raise StoreFullError(str(error)) from error
        # without a status, credentials could not be fetched: a role's may come a moment after the machine
        lasting = error.reason in _LASTING and not (error.reason is Reason.EXPIRED and not error.status)
        raise StoreError(str(error), lasting=lasting) from error


class S3Output:
    """An open output: the answer to one GET, read as it comes in.

    If the object is removed meanwhile, S3 goes on sending it; where a store does not, or the connection breaks just
    then, reading ends in `StoreError`, never in other bytes.
    """

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self.stored_size = reader.size

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield stored bytes ``start`` to ``stop`` in pieces of at most `CHUNK`."""
        with _store_errors():
            yield from self._reader.chunks(start, stop)

    def close(self) -> None:
        """Give the connection back."""
        self._reader.close()


class S3Upload:
    """An output on its way to its own name: S3 fixes the name of a multipart upload when it begins."""

    def __init__(self, upload: ObjectUpload) -> None:
        self._upload = upload

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes; waits while the bucket is slower than the caller."""
        with _store_errors():
            self._upload.write(data)

    def commit(self, blob: Blob) -> bool:
        """Complete the object; raises `ValueError` for another blob than the upload was begun for."""
        if _path(blob) != self._upload.name:
            self._upload.abort()
            raise ValueError(f"an upload to {self._upload.name} cannot become {_path(blob)}")
        with _store_errors():
            return self._upload.commit()

    def abort(self) -> None:
        """Drop what was sent."""
        self._upload.abort()


def _path(blob: Blob) -> str:
    return f"{blob.address.path}/{blob.file_name}"


def _address_of(name: str) -> Address | None:
    """Return the entry that an object belongs to, or None if it is not in an entry's folder."""
    project, _, rest = name.partition("/")
    kind, _, rest = rest.partition("/")
    try:
        address = Address.parse(project, kind, rest.split("/")[1] if "/" in rest else "")
    except WireError:
        return None
    return address if name.startswith(f"{address.path}/") else None


def _is_ours(name: str) -> bool:
    """Whether a server may have left an unfinished upload or a probe of that name."""
    folder, _, file = name.rpartition("/")
    if not folder:
        return _PROBE.fullmatch(file) is not None
    return is_entry_file(file) and (is_quarantine_folder(folder) or _address_of(name) is not None)


class S3Store:
    """`cache_server.stores.base.Store` in a bucket."""

    def __init__(self, bucket: Bucket, *, part_threads: int = PART_THREADS, size_of_parts: int = PART_SIZE) -> None:
        self._bucket = bucket
        self._pool = PartPool(part_threads)
        self._size_of_parts = size_of_parts

    @property
    def location(self) -> str:
        """The bucket's URL."""
        return str(self._bucket.url)

    def open(self, done: Callable[[str], None] = lambda _: None) -> None:
        """See that the bucket is there, that we have every right we need, and that create-only writes work.

        ``done`` is told of each step that is behind us.
        """
        with _store_errors():
            probe(self._bucket, done)
            # the last of the rights; without it abandoned uploads would be paid for unseen
            next(self._bucket.multiparts.unfinished(), None)
            done("list uploads")

    def close(self) -> None:
        """End threads and connections; uploads must have ended."""
        self._pool.close()
        self._bucket.close()

    def check(self) -> None:
        """See that the bucket answers."""
        with _store_errors():
            # whoever asks for our health asks again, and must not hold a thread meanwhile
            self._bucket.check(patient=False)

    def read_entry(self, address: Address) -> bytes | None:
        """Read ``entry.json``."""
        return self._read(f"{address.path}/{ENTRY_FILE}")

    def _read(self, name: str) -> bytes | None:
        """Return a JSON document. Where an error page may stand in for it, the object's own size is asked for too."""
        with _store_errors():
            opened = self._bucket.open(name)
            if opened is None:
                return None
            try:
                if opened.size > MAX_SMALL_OBJECT:
                    raise StoreError(f"{name} is longer than the {MAX_SMALL_OBJECT} bytes that are read", lasting=True)
                data = b"".join(opened.chunks())
            finally:
                opened.close()
            looks_whole = data.startswith(b"{") and data.endswith(b"}")
            if looks_whole or self._bucket.size(name) == len(data):
                return data
        raise StoreError(f"{self._bucket.where} sends other bytes than it says that {name} holds")

    def create_entry(self, address: Address, data: bytes) -> bool:
        """Write ``entry.json`` under the condition that there is none."""
        with _store_errors():
            return self._bucket.create(f"{address.path}/{ENTRY_FILE}", data)

    def stored_size(self, blob: Blob) -> int | None:
        """Return the object's size."""
        with _store_errors():
            return self._bucket.size(_path(blob))

    def open_output(self, blob: Blob, *, fresh: bool = False) -> S3Output | None:
        """Ask for the object."""
        with _store_errors():
            reader = self._bucket.open(_path(blob), fresh=fresh)
        return None if reader is None else S3Output(reader)

    def first_bytes(self, blob: Blob, count: int) -> bytes | None:
        """Ask for the beginning of the object."""
        with _store_errors():
            return self._bucket.first_bytes(_path(blob), count)

    def begin_upload(self, blob: Blob) -> S3Upload:
        """Begin an upload to the output's name; the bucket hears of it with the first full part."""
        return S3Upload(ObjectUpload(self._bucket, _path(blob), pool=self._pool, size_of_parts=self._size_of_parts))

    def presign(self, blob: Blob, seconds: int) -> str:
        """Return a URL by which anyone reads the output for ``seconds``, straight from the bucket."""
        with _store_errors():
            return self._bucket.presign(
                _path(blob), seconds, content_encoding="zstd" if blob.encoding == "zstd" else None
            )

    def files(self, address: Address) -> list[StoredFile]:
        """List the entry's folder."""
        folder = f"{address.path}/"
        with _store_errors():
            return [
                StoredFile(name, item.size, item.modified)
                for item in self._bucket.objects(folder)
                # a marker of the folder itself, or something deeper, is not ours
                if (name := item.name.removeprefix(folder)) and "/" not in name
            ]

    def remove(self, address: Address, file_name: str) -> None:
        """Remove an object."""
        with _store_errors():
            self._bucket.remove(f"{address.path}/{file_name}")

    def set_aside(self, address: Address, file_names: list[str], label: str) -> None:
        """Have the bucket copy the objects."""
        target = quarantine_folder(address.project, address.kind, address.key, label)
        with _store_errors():
            for name in file_names:
                self._bucket.copy(f"{address.path}/{name}", f"{target}/{name}")

    def addresses(self) -> Iterator[Address]:
        """Walk over all objects of each project and kind: a thousand for each request."""
        with _store_errors():
            for project in list(self._bucket.folders("")):
                if project in {META, QUARANTINE}:
                    continue
                for kind in Kind:
                    yield from self._keys(f"{project}/{kind.value}/")

    def _keys(self, folder: str) -> Iterator[Address]:
        last: Address | None = None
        for item in self._bucket.objects(folder):
            address = _address_of(item.name)
            if address is not None and address != last:
                last = address
                yield address

    def create_meta(self, name: MetaName, data: bytes) -> bool:
        """Write an object under the condition that there is none."""
        with _store_errors():
            return self._bucket.create(name.path, data)

    def read_meta(self, name: MetaName) -> bytes | None:
        """Read an object."""
        return self._read(name.path)

    def meta(self, table: str = "", row: str = "") -> Iterator[MetaName]:
        """List the objects below ``meta/``."""
        folder = "/".join(part for part in (META, table, row) if part)
        with _store_errors():
            for item in self._bucket.objects(f"{folder}/"):
                name = MetaName.parse(item.name)
                if name is not None:
                    yield name

    def free_bytes(self) -> int | None:
        """A bucket has no bound that it would tell."""  # noqa: D401 - says why there is no number
        return None

    def walk(self) -> Iterator[StoredFile]:
        """Walk over all objects."""
        with _store_errors():
            for item in self._bucket.objects(""):
                if not _PROBE.fullmatch(item.name):
                    yield StoredFile(item.name, item.size, item.modified)

    def unfinished(self) -> Iterator[StoredFile]:
        """List multipart uploads to names of ours, and probes."""
        with _store_errors():
            for upload in self._bucket.multiparts.unfinished():
                if _is_ours(upload.name):
                    yield StoredFile(f"multipart upload to {upload.name}", 0, upload.begun)
            for item in self._bucket.objects(TEMPORARY_PREFIX):
                if _is_ours(item.name):
                    yield StoredFile(item.name, item.size, item.modified)

    def sweep_uploads(self, before: float) -> int:
        """Abort multipart uploads by the age of their beginning, and remove what a killed probe left.

        Uploads to names that are not ours are left alone: a bucket may have other users.
        """
        removed = 0
        with _store_errors():
            for upload in list(self._bucket.multiparts.unfinished()):
                if upload.begun < before and _is_ours(upload.name):
                    self._bucket.multiparts.abort(upload.name, upload.upload)
                    removed += 1
            for item in list(self._bucket.objects(TEMPORARY_PREFIX)):
                if item.modified < before and _is_ours(item.name):
                    self._bucket.remove(item.name)
        return removed

    def sweep_quarantine(self, before: float) -> int:
        """Remove quarantined entries by the age of their youngest object."""
        youngest: dict[str, float] = {}
        names: dict[str, list[str]] = {}
        with _store_errors():
            for item in self._bucket.objects(f"{QUARANTINE}/"):
                entry = item.name.rpartition("/")[0]
                if not is_quarantine_folder(entry) or not is_entry_file(item.name.rpartition("/")[2]):
                    continue  # a bucket may have other users
                youngest[entry] = max(youngest.get(entry, 0.0), item.modified)
                names.setdefault(entry, []).append(item.name)
            old = [entry for entry, modified in youngest.items() if modified < before]
            for entry in old:
                for name in names[entry]:
                    self._bucket.remove(name)
        return len(old)
