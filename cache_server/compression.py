"""Decoding what is stored or sent as one zstd frame, in bounded memory, without trusting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zstandard

from client.encoding import MAX_WINDOW
from client.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cache_server.stores.base import Blob, Store
    from client.wire import Encoding

_SLICE = 512
"""Compressed bytes decoded at once. Four of them can stand for 128 KiB, so this bounds one step to 16 MiB."""


_LONGEST_HEAD = 18
"""Bytes of the longest head of a frame (RFC 8878, section 3.1.1)."""


def stated_size(store: Store, blob: Blob) -> int | None:
    """Return the plain size that the head of a stored zstd frame states; None if it does not, or there is none.

    For a frame that was decoded once, at its upload, it is the true one: the decoder compares the two.
    """
    try:
        size: int = zstandard.frame_content_size(store.first_bytes(blob, _LONGEST_HEAD) or b"")
    except zstandard.ZstdError:
        return None
    return None if size < 0 else size


class TooLargeError(FormatError):
    """The plain bytes are more than was allowed."""


class PlainBytes:
    """Turns bytes as stored into plain bytes, piece by piece."""

    def __init__(self, encoding: Encoding, *, limit: int) -> None:
        self._left = limit
        self._frame = (
            zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj() if encoding == "zstd" else None
        )

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """Yield the plain bytes of ``data``; raises `FormatError` if it is not one zstd frame, `TooLargeError` beyond
        the limit.
        """  # noqa: D205 - one sentence needs the room
        view = memoryview(data)
        if self._frame is None:
            yield self._count(view)
            return
        for begin in range(0, len(view), _SLICE):
            if self._frame.eof:
                raise FormatError("there are bytes after the end of the zstd frame")
            try:
                plain = self._frame.decompress(view[begin : begin + _SLICE])
            except zstandard.ZstdError as error:
                raise FormatError(f"this is no zstd frame: {error}") from error
            if self._frame.unused_data:
                raise FormatError("there are bytes after the end of the zstd frame")
            if plain:
                yield self._count(memoryview(plain))

    def _count(self, plain: memoryview) -> memoryview:
        self._left -= len(plain)
        if self._left < 0:
            raise TooLargeError("the plain bytes are more than was allowed")
        return plain

    def finish(self) -> None:
        """Raise `FormatError` if the frame has not ended."""
        if self._frame is not None and not self._frame.eof:
            raise FormatError("the zstd frame ends too early")
