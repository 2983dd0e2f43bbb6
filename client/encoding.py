"""How outputs are stored and sent: plain, or as one zstd frame where that saves 10 % or more.

Digest and size are always those of the plain bytes. A NEFF whose payload is gzip'd gains nothing, an uncompressed one
about half (measured: zstd level 3 runs at 0.5 GB/s there, the probe takes 0.4 ms).
"""

from __future__ import annotations

import io
import resource
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from client.admission.memory import memory_limit
from client.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

_LEVEL = 3
_PROBE_LEVEL = 1
_PROBE_SIZE = 64 * 1024
_PROBES = 4
_MIN_SIZE = 512
_WORTH = 0.9
# RFC 9659: what a receiver of Content-Encoding zstd has to grant, and all that it need grant.
MAX_WINDOW = 8 << 20
MAX_SIZE = 16 << 30
"""Bytes of the largest output that is read: it is held in memory whole, and its size is another party's word."""
MOST_PER_BYTE = 1000
"""Plain bytes that one byte of a frame may stand for. Logs come to 50, a NEFF full of zeros to some hundred."""
FREE_SIZE = 64 << 20
"""Plain bytes that any frame may stand for: so much is decoded in a tenth of a second."""
CHUNK = 256 * 1024
_ALWAYS = 64 << 20
_SHARE = 8


@cache
def largest() -> int:
    """Return the bytes of the largest output that this process reads: an eighth of the memory that it may use."""
    known = (memory_limit(), *(resource.getrlimit(name)[0] for name in (resource.RLIMIT_AS, resource.RLIMIT_DATA)))
    limits = [limit for limit in known if limit is not None and limit != resource.RLIM_INFINITY]
    return min([MAX_SIZE, *(max(limit // _SHARE, _ALWAYS) for limit in limits)])


class Limited:
    """The first ``limit`` bytes of ``source``, as what reads a frame from it sees them."""

    def __init__(self, source: IO[bytes], limit: int) -> None:
        self._source = source
        self._left = limit

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none after the last."""
        piece = self._source.read(min(size, self._left))
        self._left -= len(piece)
        return piece


def worth_encoding(data: bytes) -> bool:
    """Return whether a probe of ``data`` promises that zstd saves 10 % or more."""
    from client.neff import GZIP_MAGIC, HEADER_SIZE  # noqa: PLC0415 - the import of the cache is light

    if len(data) < _MIN_SIZE or GZIP_MAGIC in (data[:2], data[HEADER_SIZE : HEADER_SIZE + 2]):
        return False
    import zstandard  # noqa: PLC0415 - a job that only reads plain outputs never needs it

    compressor = zstandard.ZstdCompressor(level=_PROBE_LEVEL)
    plain = packed = 0
    step = max(_PROBE_SIZE, len(data) // _PROBES)
    for start in range(0, len(data), step):
        part = memoryview(data)[start : start + _PROBE_SIZE]
        plain += len(part)
        packed += len(compressor.compress(part))
    return packed <= plain * _WORTH


def encode(data: bytes) -> bytes:
    """Return ``data`` as one zstd frame that states its content size."""
    import zstandard  # noqa: PLC0415 - see above

    packed: bytes = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    return packed


def most_plain(stored_size: int) -> int:
    """Return how many plain bytes a frame of ``stored_size`` bytes may stand for in a shared cache.

    A frame of more costs those who take it in out of all proportion to what it cost to send.
    """
    return max(FREE_SIZE, MOST_PER_BYTE * stored_size)


def decode(data: bytes, size: int) -> bytes:
    """Return the ``size`` plain bytes of a zstd frame; raises `FormatError` if it holds fewer, more or damaged ones."""
    return read_decoded(io.BytesIO(data), size, lambda _: None)


def read_decoded(source: IO[bytes] | Limited, size: int, seen: Callable[[memoryview], object]) -> bytes:
    """Return the ``size`` plain bytes of the zstd frame in ``source``, handing each piece to ``seen`` on the way.

    Never holds more than ``size`` bytes and one window, however much the frame would unpack to. Raises `FormatError`
    if it holds fewer, more or damaged ones; what ``source.read`` raises passes through.
    """
    import zstandard  # noqa: PLC0415 - see above

    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    try:
        with decompressor.stream_reader(cast("IO[bytes]", source), read_size=CHUNK, closefd=False) as reader:
            plain = read_exactly(reader.readinto, size, seen)
            if plain is None or reader.read(1):
                raise FormatError(
                    f"a zstd frame that should hold {size} bytes holds {'fewer' if plain is None else 'more'}"
                )
    except zstandard.ZstdError as error:
        raise FormatError(f"a damaged zstd frame: {error}") from error
    return plain


def read_exactly(
    readinto: Callable[[memoryview], Any], size: int, seen: Callable[[memoryview], object]
) -> bytes | None:
    """Return ``size`` bytes from ``readinto``, handing each piece to ``seen`` on the way; None if it ends before.

    Raises `FormatError` if ``size`` is over `largest`. Each piece is read into a small buffer, looked at while it is
    in the processor's cache, and put in its place in the object that is returned: CPython's BytesIO gives out its own
    bytes, without a copy, when they are full. Memory for them is only taken as they arrive. (Reading into
    ``BytesIO.getbuffer()`` would save a copy, but CPython 3.12.1 crashes when such a buffer is collected as garbage.)
    """
    if size > _ALWAYS and size > largest():
        raise FormatError(f"an output of {size} bytes is over the {largest()} that are read")
    target = io.BytesIO(bytes(size))
    buffer = memoryview(bytearray(min(size, CHUNK)))
    while (left := size - target.tell()) > 0:
        count = readinto(buffer[:left])
        if not count:
            return None
        piece = buffer[:count]
        seen(piece)
        target.write(piece)
    return target.getvalue()
