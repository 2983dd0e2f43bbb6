"""Taking an output in: hashed while it streams, durable before it is acknowledged, gone if anything is wrong."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import TYPE_CHECKING, NamedTuple

from cache_server.compression import PlainBytes, TooLargeError
from cache_server.errors import Problem
from cache_server.http.asgi import Incoming, header, unless_gone
from cache_server.stores.base import CHUNK, Blob
from client.encoding import MOST_PER_BYTE, most_plain
from client.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.types import Receive, Scope

    from cache_server.services.reservation import Reservation, Space
    from cache_server.stores.base import Store, Upload
    from cache_server.workers import Workers


_STEP = 16 << 20
"""Plain bytes that are hashed in one turn."""


class Received(NamedTuple):
    """An output that is stored now; sizes in bytes, plain and as stored."""

    blob: Blob
    size: int
    stored_size: int
    created: bool


class _Intake:
    """The worker-thread half: hashes and writes. The lock makes `abort` wait for a call that still runs."""

    def __init__(self, store: Store, blob: Blob, limit: int, declared: int | None, reservation: Reservation) -> None:
        self._store = store
        self._reservation = reservation
        self._blob = blob
        self._limit = limit
        self._plain = PlainBytes(blob.encoding, limit=limit)
        self._digest = hashlib.sha256()
        self._size = 0
        self._stored_size = 0
        self._lock = threading.Lock()
        self._upload: Upload | None = None
        self._ended = False
        self._batch: list[bytes] = []
        self._pieces: Iterator[memoryview] = iter(())
        self._declared = declared
        self.stopped = False
        """Set from the event loop: what still runs ends at its next piece."""

    @property
    def _most(self) -> int:
        """How many plain bytes the body may stand for; without a stated length, what has come of it so far."""
        if self._plain.is_plain:
            return self._limit
        return most_plain(self._stored_size + sum(map(len, self._batch)) if self._declared is None else self._declared)

    def reserve(self, size: int) -> None:
        """Have room promised for a body of ``size`` bytes."""
        with self._lock:
            if not self._ended:
                self._reservation.cover(size)

    def begin(self, batch: list[bytes]) -> None:
        """Take some pieces of the body, to be hashed by `hash_some` and then written by `write`."""
        self._batch = batch
        self._pieces = (piece for data in batch for piece in self._plain.feed(data))

    def hash_some(self) -> bool:
        """Unpack and hash a bounded part of what was taken; return whether something is left."""
        with self._lock:
            begun = self._size
            try:
                for piece in self._pieces:
                    if self.stopped:
                        raise Problem("short_body")
                    self._digest.update(piece)
                    self._size += len(piece)
                    if self._size > self._most:
                        raise Problem("too_large", f"it unpacks to more than {MOST_PER_BYTE} times its size")
                    if self._size - begun >= _STEP:
                        return True
            except TooLargeError as error:
                raise Problem("too_large") from error
            except FormatError as error:
                raise Problem("broken_body", str(error)) from error
            return False

    def write(self) -> None:
        """Write what was taken."""
        with self._lock:
            upload = self._begun()
            for data in self._batch:
                self._reservation.will_write(len(data))
                upload.write(data)
                self._reservation.wrote(len(data))
                self._stored_size += len(data)

    def take(self) -> None:
        """Hash and write what was taken, which is plain: one hop."""
        while self.hash_some():
            pass
        self.write()

    def commit(self, make_room: Callable[[Blob, int], None]) -> Received:
        """Make the output durable if it is what its address says."""
        with self._lock:
            upload = self._begun()
            try:
                self._plain.finish()
            except FormatError as error:
                raise Problem("broken_body", str(error)) from error
            found = self._digest.hexdigest()
            if found != self._blob.sha256:
                raise Problem("wrong_digest", f"the body hashes to {found}")
            make_room(self._blob, self._stored_size)
            created = upload.commit(self._blob)
            stored = self._stored_size if created else self._store.stored_size(self._blob)
            return Received(self._blob, self._size, self._stored_size if stored is None else stored, created)

    def _begun(self) -> Upload:
        if self._ended:
            raise Problem("short_body")
        if self._upload is None:
            self._upload = self._store.begin_upload(self._blob)
        return self._upload

    def abort(self) -> None:
        """Drop what was written, and whatever comes after; does nothing after `commit`."""
        with self._lock:
            self._ended = True
            self._reservation.release()
            if self._upload is not None:
                self._upload.abort()


async def receive_output(
    scope: Scope,
    receive: Receive,
    blob: Blob,
    *,
    store: Store,
    workers: Workers,
    space: Space,
    limit: int,
    idle_seconds: float,
    make_room: Callable[[Blob, int], None],
) -> Received:
    """Store the request's body as ``blob``. ``limit`` bounds its plain bytes; raises `Problem` for what is wrong.

    Room is taken from ``space`` before the first byte is received, `StoreFullError` if there is none.
    While one batch is hashed and written, the next is received: never more than two are in memory. ``make_room`` is
    called with the output's place and stored size before it takes that place.
    """
    text = header(scope, b"content-length")
    declared = int(text) if text is not None and text.isdigit() else None
    if declared is not None and declared > limit:
        raise Problem("too_large")
    intake = _Intake(store, blob, limit, declared, space.reservation())
    writing: asyncio.Task[None] | None = None
    try:
        await workers.run(intake.reserve, declared or 1)
        async for batch in _batches(receive, declared, idle_seconds):
            if writing is not None:
                await writing
            intake.begin(batch)
            writing = asyncio.create_task(_take(workers, intake, blob))
        if writing is not None:
            await unless_gone(receive, writing)
        return await workers.run(intake.commit, make_room)
    finally:
        intake.stopped = True
        aborted = workers.surely(intake.abort)
        if writing is not None:
            # its own failure is already on its way to the caller, or does not matter any more
            await asyncio.wait([writing])
            _ = writing.cancelled() or writing.exception()
        await aborted


async def _take(workers: Workers, intake: _Intake, blob: Blob) -> None:
    """Hash and write a batch; where it must be unpacked, in steps that leave the workers to others."""
    if blob.encoding == "identity":
        await workers.run(intake.take)
        return
    while await workers.run_slow(intake.hash_some):
        pass
    await workers.run(intake.write)


async def _batches(receive: Receive, declared: int | None, idle_seconds: float) -> AsyncIterator[list[bytes]]:
    """Yield the body in batches of about `CHUNK` bytes; raises `Problem` if it stops early or stands still."""
    batch: list[bytes] = []
    held = total = 0
    more = True
    incoming = Incoming(receive, idle_seconds)
    while more:
        message = await incoming.next()
        data = message.get("body", b"")
        more = message.get("more_body", False)
        batch.append(data)
        held += len(data)
        total += len(data)
        if held >= CHUNK or not more:
            yield batch
            batch, held = [], 0
    if declared is not None and total < declared:
        raise Problem("short_body")
