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

_BLOCKS = 8
"""Blocks of a frame that are decoded at once. Each stands for 128 KiB at most (RFC 8878, section 3.1.1.2.4)."""

_FRAME_HEAD, _BLOCK_HEAD = 5, 3
"""Bytes that tell the length of a frame's head, and that are a block's head."""
_RLE = 1


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


class _Blocks:
    """Cuts a zstd frame where its blocks end, so that a decoder can be given few at a time.

    Looks at nothing but lengths: what is wrong with the frame, the decoder says.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._wanted = _FRAME_HEAD
        self._left = 0
        self._ended = False

    def steps(self, data: memoryview) -> Iterator[memoryview]:
        """Yield ``data`` in pieces that stand for little more than `_BLOCKS` blocks each."""
        begin = position = blocks = 0
        while position < len(data) and not self._ended:
            if self._left:
                count = min(self._left, len(data) - position)
                self._left -= count
            else:
                count = min(self._wanted - len(self._head), len(data) - position)
                self._head += data[position : position + count]
            position += count
            if not self._left and len(self._head) == self._wanted:
                blocks += self._wanted == _BLOCK_HEAD
                self._read_head()
            if not self._left and blocks >= _BLOCKS:
                yield data[begin:position]
                begin, blocks = position, 0
        if begin < len(data):
            yield data[begin:]

    def _read_head(self) -> None:
        head = bytes(self._head)
        self._head.clear()
        if self._wanted == _FRAME_HEAD:
            try:
                self._left = zstandard.frame_header_size(head) - _FRAME_HEAD
            except zstandard.ZstdError:
                self._ended = True
            self._wanted = _BLOCK_HEAD
            return
        value = int.from_bytes(head, "little")
        is_last, block_type, size = value & 1, value >> 1 & 3, value >> 3
        self._left = 1 if block_type == _RLE else size
        # behind the last block there is at most a checksum: what comes then, the decoder refuses
        self._ended = bool(is_last)


class PlainBytes:
    """Turns bytes as stored into plain bytes, piece by piece: a few of them can stand for gigabytes."""

    def __init__(self, encoding: Encoding, *, limit: int) -> None:
        self._left = limit
        self._blocks = _Blocks()
        self._frame = (
            zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj() if encoding == "zstd" else None
        )

    @property
    def is_plain(self) -> bool:
        """Whether nothing is unpacked here."""
        return self._frame is None

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """Yield the plain bytes of ``data``, of a frame little more than 1 MiB at once.

        Raises `FormatError` if it is not one zstd frame, `TooLargeError` beyond the limit.
        """
        view = memoryview(data)
        if self._frame is None:
            yield self._count(view)
            return
        for step in self._blocks.steps(view):
            if self._frame.eof:
                raise FormatError("there are bytes after the end of the zstd frame")
            try:
                plain = self._frame.decompress(step)
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
