"""Sending an output: whole, in part, or not at all because the caller has it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from cache_server.compression import PlainBytes
from cache_server.errors import Problem
from cache_server.http.asgi import header, watching
from cache_server.http.conditional import Span, accepts_zstd, check_if_match, matches, tag_of, wanted_span
from cache_server.services.verification import check_sent
from cache_server.stores.base import CHUNK, Blob, StoreError
from client.errors import FormatError
from client.wire import ENTRY_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Receive, Scope, Send

    from cache_server.http.asgi import Headers
    from cache_server.stores.base import OpenOutput, Store
    from cache_server.workers import Workers

_ENTRY_HEADER = ENTRY_HEADER.lower().encode()

MAX_HEAD_SENT = 3584
"""Bytes of a whole head: a proxy as it is delivered takes 4 KiB (nginx's ``proxy_buffer_size``), and adds its own."""
_ROOM = 256
"""Bytes of a head that are not known here: status line, date, request id, connection."""
_AROUND = 4
"""Bytes around a header's name and value: colon, space, end of line."""


class Representation(NamedTuple):
    """What can be sent: where it lies, its plain size, and the entry's header if the call carries one."""

    blob: Blob
    size: int
    stored_size: int
    entry_header: str | None = None


async def send_output(
    scope: Scope, receive: Receive, send: Send, wanted: Representation, *, store: Store, workers: Workers
) -> None:
    """Answer GET or HEAD; raises `Problem` before anything is sent, ``not_found`` if the output is gone or short."""
    compressed = wanted.blob.encoding == "zstd"
    is_get = scope["method"] == "GET"
    # ranges are defined for GET alone: HEAD tells of the whole. Nor is there any part of what is stored as one frame:
    # to come to its last bytes all of it would have to be unpacked (RFC 9110, section 14.2: the whole may be sent)
    ranged = header(scope, b"range") if is_get and not compressed else None
    as_stored = not compressed or accepts_zstd(header(scope, b"accept-encoding"))
    tag = tag_of(wanted.blob.sha256, compressed=compressed and as_stored)
    headers: Headers = [
        (b"etag", tag.encode()),
        (b"cache-control", b"private, no-cache"),
        (b"vary", b"accept-encoding"),
        (b"x-content-type-options", b"nosniff"),
    ]

    check_if_match(header(scope, b"if-match"), tag)
    known = header(scope, b"if-none-match")
    if known is not None and matches(known, tag, strong=False):
        _add_entry(headers, wanted)
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return

    span = wanted_span(ranged, header(scope, b"if-range"), tag, wanted.size)
    length = wanted.stored_size if as_stored else wanted.size
    part = span or Span(0, length)
    headers += [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", str(part.stop - part.start).encode()),
        (b"accept-ranges", b"none" if compressed else b"bytes"),
    ]
    if compressed and as_stored:
        headers.append((b"content-encoding", b"zstd"))
    if span is not None:
        headers.append((b"content-range", f"bytes {span.start}-{span.stop - 1}/{wanted.size}".encode()))
    _add_entry(headers, wanted)
    start = {"type": "http.response.start", "status": 200 if span is None else 206, "headers": headers}

    body = _Body(store, wanted, part, decode=not as_stored)
    run = workers.run if as_stored else workers.run_slow
    try:
        # the first piece is read before the answer begins: a small output costs one hop, and an error is still sayable
        piece = await run(body.first, read=is_get)
        await send(start)
        if body.has_more():
            async with watching(receive) as gone:
                while body.has_more() and not gone.done():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    piece = await run(body.next)
        await send({"type": "http.response.body", "body": piece})
    finally:
        body.close()


def fits_in_head(text: str) -> bool:
    """Return whether a header of that length leaves room for those that every answer has."""
    return len(text) <= MAX_HEAD_SENT - _ROOM


def _add_entry(headers: Headers, wanted: Representation) -> None:
    """Let the entry travel with its artifact if the head does not grow too large; else its reader asks for it."""
    if wanted.entry_header is None:
        return
    size = sum(len(name) + len(value) + _AROUND for name, value in headers)
    if size + len(_ENTRY_HEADER) + len(wanted.entry_header) + _AROUND <= MAX_HEAD_SENT - _ROOM:
        headers.append((_ENTRY_HEADER, wanted.entry_header.encode()))


async def send_redirect(send: Send, location: str, wanted: Representation) -> None:
    """Answer 307 to an address that lets anybody in for a while: nobody may keep the answer."""
    headers: Headers = [
        (b"location", location.encode("ascii")),
        (b"content-length", b"0"),
    ]
    _add_entry(headers, wanted)
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class _Body:
    """The pieces of an answer, read on worker threads, one at a time.

    The lock is for a request that is cancelled in the middle of a read: no thread may find its descriptor closed, and
    perhaps another file behind it.
    """

    def __init__(self, store: Store, wanted: Representation, part: Span, *, decode: bool) -> None:
        self._store = store
        self._wanted = wanted
        self._left = part.stop - part.start
        self._part = part
        self._decode = decode
        self._lock = threading.Lock()
        self._closed = False
        self._opened: OpenOutput | None = None
        self._pieces: Iterator[bytes] = iter(())

    def has_more(self) -> bool:
        """Whether bytes are left to be read."""
        return self._left > 0

    def first(self, *, read: bool) -> bytes:
        """Open the output and return the first piece, nothing unless ``read``. Blocks."""
        with self._lock:
            opened = self._opened = None if self._closed else self._store.open_output(self._wanted.blob)
            if opened is None or opened.stored_size != self._wanted.stored_size:
                # an error page in its place is no miss: whoever is told of one compiles, and perhaps publishes
                check_sent(self._store, self._wanted.blob, None if opened is None else opened.stored_size)
                raise Problem(
                    "not_found", "the stored output is missing or damaged; ask for the lease to have it repaired"
                )
            if not read:
                self._left = 0
            if self._left == 0:
                return b""
            self._pieces = self._plain(opened) if self._decode else opened.chunks(*self._part)
            return self._take()

    def next(self) -> bytes:
        """Return the next piece. Blocks."""
        with self._lock:
            return self._take()

    def _take(self) -> bytes:
        piece = None if self._closed else next(self._pieces, None)
        if piece is None:
            raise StoreError("a stored output holds fewer bytes than its entry says")
        self._left -= len(piece)
        return piece

    def _plain(self, opened: OpenOutput) -> Iterator[bytes]:
        plain = PlainBytes("zstd", limit=self._wanted.size)
        pending = bytearray()
        try:
            for chunk in opened.chunks():
                for piece in plain.feed(chunk):
                    pending += piece
                    if len(pending) >= CHUNK:
                        yield bytes(pending)
                        pending.clear()
            if pending:
                yield bytes(pending)
        except FormatError as error:
            raise StoreError(f"a stored output is damaged: {error}") from error

    def close(self) -> None:
        """Close the output, after the read that still runs if the request was cancelled."""
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.close()
