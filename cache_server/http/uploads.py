"""Taking an output in: hashed while it streams, durable before it is acknowledged, gone if anything is wrong."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, NamedTuple

from cache_server.compression import PlainBytes, TooLargeError
from cache_server.errors import Problem
from cache_server.http.asgi import header
from cache_server.stores.base import CHUNK, Blob
from client.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope

    from cache_server.stores.base import Store
    from cache_server.workers import Workers


class Received(NamedTuple):
    """An output that is stored now; sizes in bytes, plain and as stored."""

    blob: Blob
    size: int
    stored_size: int
    created: bool


class _Intake:
    """The worker-thread half: hashes and writes. One call at a time."""

    def __init__(self, store: Store, blob: Blob, limit: int) -> None:
        self._blob = blob
        self._plain = PlainBytes(blob.encoding, limit=limit)
        self._digest = hashlib.sha256()
        self._size = 0
        self._stored_size = 0
        self._upload = store.begin_upload(blob.address)

    def take(self, batch: list[bytes]) -> None:
        """Hash and write some pieces of the body."""
        try:
            for data in batch:
                for piece in self._plain.feed(data):
                    self._digest.update(piece)
                    self._size += len(piece)
                self._upload.write(data)
                self._stored_size += len(data)
        except TooLargeError as error:
            raise Problem("too_large") from error
        except FormatError as error:
            raise Problem("broken_body", str(error)) from error

    def commit(self, replace_stale: Callable[[Blob, int], None]) -> Received:
        """Make the output durable if it is what its address says."""
        try:
            self._plain.finish()
        except FormatError as error:
            raise Problem("broken_body", str(error)) from error
        if self._digest.hexdigest() != self._blob.sha256:
            raise Problem("wrong_digest", f"the body hashes to {self._digest.hexdigest()}")
        replace_stale(self._blob, self._stored_size)
        created = self._upload.commit(self._blob)
        return Received(self._blob, self._size, self._stored_size, created)

    def abort(self) -> None:
        """Drop what was written; does nothing after `commit`."""
        self._upload.abort()


async def receive_output(
    scope: Scope,
    receive: Receive,
    blob: Blob,
    *,
    store: Store,
    workers: Workers,
    limit: int,
    idle_seconds: float,
    replace_stale: Callable[[Blob, int], None],
) -> Received:
    """Store the request's body as ``blob``. ``limit`` bounds its plain bytes; raises `Problem` for what is wrong.

    While one batch is hashed and written, the next is received: never more than two are in memory. ``replace_stale``
    is called with the output's place and stored size before it takes that place.
    """
    declared = header(scope, b"content-length")
    if declared is not None and int(declared) > limit:
        raise Problem("too_large")
    intake = await workers.run(_Intake, store, blob, limit)
    writing: asyncio.Future[None] | None = None
    try:
        async for batch in _batches(receive, None if declared is None else int(declared), idle_seconds):
            if writing is not None:
                await _uninterrupted(writing)
            writing = asyncio.ensure_future(workers.run(intake.take, batch))
        if writing is not None:
            await _uninterrupted(writing)
        return await _uninterrupted(asyncio.ensure_future(workers.run(intake.commit, replace_stale)))
    finally:
        if writing is not None and not writing.done():
            await asyncio.wait([writing])
        await _uninterrupted(asyncio.ensure_future(workers.run(intake.abort)))
