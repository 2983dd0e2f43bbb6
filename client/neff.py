"""The NEFF container: a 1024-byte little-endian header, then (normally) a gzip'd tar.

Layout as AWS's compiler writes it (see ``docs/neff.md``). The header holds a UUID and an output path, so two builds of
one graph are never byte-equal: artifacts are addressed by what went into the compiler, never by what came out.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.errors import NeffError

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER_SIZE = 1024
GZIP_MAGIC = b"\x1f\x8b"

# pkg_version, header_size, data_size, neff_major, neff_minor, build_version, num_tpb, hash, uuid, name,
# requested_tpb, tpb_per_node, feature_bits, lnc_size
_HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI")
_PKG_VERSION = 2
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a NEFF header that a cache looks at. Sizes are in bytes."""

    pkg_version: int
    data_size: int
    neff_version: tuple[int, int]
    build_version: str
    uuid: bytes
    name: str
    feature_bits: int
    logical_cores: int


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def read_header(data: bytes | memoryview) -> Header:
    """Return the header of the NEFF in ``data``; raise `NeffError` if it is none."""
    if len(data) < HEADER_SIZE:
        raise NeffError(f"no NEFF: {len(data)} bytes are fewer than its {HEADER_SIZE}-byte header")
    fields = _HEADER.unpack_from(data)
    header_size, data_size = fields[1], fields[2]
    if header_size != HEADER_SIZE:
        raise NeffError(f"no NEFF: the header says it is {header_size} bytes long, expected {HEADER_SIZE}")
    return Header(
        pkg_version=fields[0],
        data_size=data_size,
        neff_version=(fields[3], fields[4]),
        build_version=_text(fields[5]),
        uuid=fields[8],
        name=_text(fields[9]),
        feature_bits=fields[12],
        logical_cores=fields[13],
    )


def validate(data: bytes | memoryview) -> Header:
    """Return the header if ``data`` is one whole NEFF, else raise `NeffError`.

    Checks the two sizes and, for a gzip payload, its CRC: the cheapest tests that catch empty, short and torn files.
    """
    header = read_header(data)
    held = len(data) - HEADER_SIZE
    if held != header.data_size:
        raise NeffError(f"broken NEFF: the header promises {header.data_size} bytes of payload, the file holds {held}")
    payload = memoryview(data)[HEADER_SIZE:]
    if payload[:2] == GZIP_MAGIC:
        _check_gzip(payload)
    return header


def _check_gzip(payload: memoryview) -> None:
    """Decompress without keeping the bytes; gzip's trailer holds CRC and length."""
    rest: bytes | memoryview = payload
    while len(rest):
        stream = zlib.decompressobj(wbits=31)
        pending: bytes | memoryview = rest
        try:
            while not stream.eof and len(pending):
                stream.decompress(pending, _CHUNK)
                pending = stream.unconsumed_tail
            if not stream.eof:
                raise NeffError("broken NEFF: its gzip payload ends too early")
        except zlib.error as error:
            raise NeffError(f"broken NEFF: its gzip payload is damaged ({error})") from error
        rest = stream.unused_data.lstrip(b"\0")


def pack(members: Mapping[str, bytes], *, name: str, build_version: str, uuid: bytes, logical_cores: int = 1) -> bytes:
    """Return a NEFF that holds ``members`` as a gzip'd tar, in the order given.

    ``name`` says what the file is; ``uuid`` is 16 random bytes from the caller. Times and owners in the archive are
    zero, so that equal members give equal payload bytes.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    payload = gzip.compress(archive.getvalue(), compresslevel=1, mtime=0)
    header = _HEADER.pack(
        _PKG_VERSION,
        HEADER_SIZE,
        len(payload),
        2,
        0,
        build_version.encode()[:127],
        1,
        hashlib.sha256(payload).digest(),
        uuid,
        name.encode()[:255],
        1,
        b"\1",
        0,
        logical_cores,
    )
    return header.ljust(HEADER_SIZE, b"\0") + payload


def unpack(data: bytes | memoryview, *, limit: int = 1 << 32) -> dict[str, bytes]:
    """Return the members of a NEFF whose payload is a gzip'd tar; raise `NeffError` if it is none.

    ``limit`` bounds the unpacked size in bytes. Only regular files are returned; nothing is written anywhere.
    """
    validate(data)
    members: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(memoryview(data)[HEADER_SIZE:]), mode="r:gz") as tar:
            for info in tar:
                total += info.size
                if total > limit:
                    raise NeffError(f"this NEFF unpacks to more than {limit} bytes")
                content = tar.extractfile(info) if info.isreg() else None
                if content is not None:
                    members[info.name] = content.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise NeffError(f"the payload of this NEFF is no gzip'd tar: {error}") from error
    return members
