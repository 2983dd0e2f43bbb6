"""Writing an object while its bytes come in: in one request if they are few, else in parts in the background.

Memory: each upload holds the part that fills up, and all uploads of one `PartPool` together at most one part for each
of its threads. Whoever writes faster than the store takes waits.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from client.s3.errors import Reason, S3Error

if TYPE_CHECKING:
    from client.s3.bucket import Bucket
    from client.s3.multipart import Part

MAX_PARTS = 10_000
"""S3's own limit."""

PART_SIZE = 8 << 20
"""Bytes of a part; S3 wants at least 5 MiB of every part but the last, some stores the same size for all."""


def part_size(largest: int, *, at_least: int = PART_SIZE) -> int:
    """Return the size of parts, in whole MiB, at which `MAX_PARTS` hold an object of ``largest`` bytes."""
    mib = 1 << 20
    needed = -(-largest // MAX_PARTS)
    return max(at_least, -(-needed // mib) * mib)


class PartPool:
    """Threads that send parts, shared by all uploads to a bucket."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="neff-cache-part")
        self._free = threading.BoundedSemaphore(threads)

    def submit(self, bucket: Bucket, name: str, upload: str, number: int, data: bytearray) -> Future[Part]:
        """Send a part as soon as a thread is free; waits until then, so that no part waits in memory."""
        self._free.acquire()
        try:
            return self._pool.submit(self._put, bucket, name, upload, number, data)
        except BaseException:
            self._free.release()
            raise

    def _put(self, bucket: Bucket, name: str, upload: str, number: int, data: bytearray) -> Part:
        try:
            return bucket.multiparts.put_part(name, upload, number, data)
        finally:
            self._free.release()

    def close(self) -> None:
        """Wait for the parts that are being sent, then end the threads."""
        self._pool.shutdown(wait=True)


class ObjectUpload:
    """One object on its way in. Not for several threads at once. Exactly one of `commit` and `abort` ends it."""

    def __init__(self, bucket: Bucket, name: str, *, pool: PartPool, size_of_parts: int) -> None:
        self.name = name
        self._bucket = bucket
        self._pool = pool
        self._size_of_parts = size_of_parts
        self._buffer = bytearray()
        self._size = 0
        self._upload: str | None = None
        self._parts: list[Future[Part]] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes; raises `S3Error` if a part could not be stored."""
        view = memoryview(data)
        while view:
            # filled only when more comes: an object of exactly one part is one request
            if len(self._buffer) == self._size_of_parts:
                self._send()
            piece = view[: self._size_of_parts - len(self._buffer)]
            self._buffer += piece
            self._size += len(piece)
            view = view[len(piece) :]

    def _send(self) -> None:
        if self._upload is None:
            self._upload = self._bucket.multiparts.begin(self.name)
        for part in self._parts:
            if part.done():
                part.result()
        data, self._buffer = self._buffer, bytearray()
        self._parts.append(self._pool.submit(self._bucket, self.name, self._upload, len(self._parts) + 1, data))

    def commit(self) -> bool:
        """Make the bytes the object, create-only: False if there was one already. Raises `S3Error`.

        A store may not verify what it receives, so the size of what it has now is asked for.
        """
        try:
            if self._upload is None:
                created = self._bucket.create(self.name, self._buffer)
            else:
                if self._buffer:
                    self._send()
                parts = [part.result() for part in self._parts]
                created = self._bucket.multiparts.complete(self.name, self._upload, parts, self._size)
                if created:
                    self._upload = None
            if created:
                self._verify()
        finally:
            self.abort()
        return created

    def _verify(self) -> None:
        stored = self._bucket.size(self.name)
        # none at all: a sweep took it meanwhile, and whoever publishes an entry looks for its outputs
        if stored not in {None, self._size}:
            # nothing may be left under a name that stands for other bytes
            self._bucket.remove(self.name)
            raise S3Error(f"{self._bucket.where} was given {self._size} bytes and holds {stored}", Reason.UNREACHABLE)

    def abort(self) -> None:
        """Drop the bytes. What the store does not drop now, because it cannot be reached, is found by a sweep."""
        self._buffer = bytearray()
        upload, self._upload = self._upload, None
        if upload is None:
            return
        # a part that arrives after the abort would stay: end them first
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            with contextlib.suppress(S3Error, CancelledError):
                part.result()
        with contextlib.suppress(S3Error):
            self._bucket.multiparts.abort(self.name, upload)
