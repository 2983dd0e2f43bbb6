"""Entries one after another in a tar: what a server sends for many keys at once, and what a bundle holds.

::

    <project>/<kind>/<key>.json       the entry
    <project>/<kind>/<key>/<output>   its outputs, in the order in which the entry names them

Written for readers who trust nothing: every member is a plain file with a name of the form above, in a header block of
its own (no extensions, so no names of unbounded length), and a reader never extracts: it takes members one by one, in
the order it expects, and never more bytes of one than its header announces. Headers hold no times, owners or modes of
the writer, so that equal entries make equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, cast

from client import encoding
from client.errors import FormatError, WireError
from client.names import check_digest, check_kind, check_output, check_project
from client.wire import Entry

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from client.names import Kind
    from client.wire import Encoding, Output

BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
MAX_MEMBER = (8 << 30) - 1
"""Bytes of the largest output that a header without extensions can announce."""
MAX_ENTRY = 4 << 20
"""Bytes of the largest entry that is read."""
_MODE = 0o644


class Readable(Protocol):
    """Where a stream's bytes come from: any raw or buffered reader."""

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Fill some of ``buffer`` and return how much; 0 at the end."""


class Name(NamedTuple):
    """What a member is: an entry (``output`` is None) or one of its outputs."""

    project: str
    kind: Kind
    key: str
    output: str | None = None

    def __str__(self) -> str:
        """Return the member's name."""
        tail = ".json" if self.output is None else f"/{self.output}"
        return f"{self.project}/{self.kind.value}/{self.key}{tail}"

    @classmethod
    def parse(cls, text: str) -> Name:
        """Read a member's name; raises `FormatError` for any other path."""
        parts = text.split("/")
        try:
            match parts:
                case [project, kind, file] if file.endswith(".json"):
                    key, output = file.removesuffix(".json"), None
                case [project, kind, key, name]:
                    output = check_output(name)
                case _:
                    raise FormatError(f"a member called {text[:200]!r} does not belong into a stream of entries")
            return cls(check_project(project), check_kind(kind), check_digest(key), output)
        except WireError as error:
            raise FormatError(f"a member is called {text[:200]!r}: {error}") from error


def name_of(entry: Entry, output: Output | None = None) -> Name:
    """Return the name of an entry's own member, or of one of its outputs."""
    return Name(entry.project, entry.kind, entry.key, None if output is None else output.name)


def entry_bytes(entry: Entry) -> bytes:
    """Return an entry as its member holds it: one form for equal entries."""
    return json.dumps(entry.to_json(), sort_keys=True, separators=(",", ":")).encode()


def head(name: str, size: int) -> bytes:
    """Return the header block of a member of ``size`` bytes; raises `FormatError` over `MAX_MEMBER`."""
    if size > MAX_MEMBER:
        raise FormatError(f"{name} holds {size} bytes, more than fit into one member ({MAX_MEMBER})")
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, _MODE
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(size: int) -> bytes:
    """Return the zeros that follow ``size`` bytes of content."""
    return bytes(-size % BLOCK)


class Member(io.RawIOBase):
    """One member's content: a reader that ends where the header said."""

    def __init__(self, source: Readable, name: str, size: int) -> None:
        super().__init__()
        self.name = name
        self.size = size
        self.left = size
        self._source = source

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill some of ``buffer``; raises `FormatError` if the stream ends inside the member."""
        wanted = memoryview(buffer).cast("B")[: self.left]
        if not wanted:
            return 0
        count = self._source.readinto(wanted) or 0
        if count == 0:
            raise FormatError(f"the stream ends inside {self.name}, {self.left} bytes before its end")
        self.left -= count
        return count

    def read_small(self, limit: int) -> bytes:
        """Return the whole content; raises `FormatError` if it is longer than ``limit`` bytes."""
        if self.size > limit:
            raise FormatError(f"{self.name} holds {self.size} bytes, more than the {limit} that are read")
        return self.readall()

    def read_plain(self, output: Output, coding: Encoding) -> bytes:
        """Return the plain bytes of ``output``, stored here in ``coding``; raises `FormatError` for any others.

        One of the right size is read to its end even so, and the next member can be; ``left`` tells.
        """
        expected = output.size if coding == "identity" else output.stored_size
        if self.size != expected:
            raise FormatError(f"{self.name} holds {self.size} bytes in place of {expected}")
        digest = hashlib.sha256()
        try:
            if coding == "zstd":
                plain: bytes | None = encoding.read_decoded(cast("IO[bytes]", self), output.size, digest.update)
            else:
                plain = encoding.read_exactly(self.readinto, output.size, digest.update)
        finally:
            self.drain()
        if plain is None or digest.hexdigest() != output.sha256:
            raise FormatError(f"{self.name} has not the digest that its entry names")
        return plain

    def drain(self) -> None:
        """Read what is left, and drop it."""
        buffer = bytearray(min(self.left, encoding.CHUNK))
        while self.left:
            self.readinto(buffer)


class Members:
    """The members of a stream, in order. Every method raises `FormatError` for anything but such a stream."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._current: Member | None = None

    def next(self) -> Member | None:
        """Return the next member, past what is unread of the last one; None at the stream's end, which is consumed."""
        if self._current is not None:
            self._current.drain()
            self._exactly(-self._current.size % BLOCK)
        block = self._exactly(BLOCK)
        if not any(block):
            self._exactly(BLOCK)
            self._current = None
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise FormatError(f"this is no stream of entries: {error}") from error
        if info.type != tarfile.REGTYPE or info.size < 0:
            raise FormatError(f"a member called {info.name[:200]!r} is no plain file")
        self._current = Member(self._source, info.name, info.size)
        return self._current

    def expect(self, name: str) -> Member:
        """Return the next member, which has to be called ``name``."""
        member = self.next()
        if member is None or member.name != name:
            found = "the end" if member is None else repr(member.name[:200])
            raise FormatError(f"{name} is expected, and there is {found}")
        return member

    def _exactly(self, size: int) -> bytes:
        held = bytearray(size)
        filled = 0
        while filled < size:
            count = self._source.readinto(memoryview(held)[filled:])
            if not count:
                raise FormatError("the stream ends between two members")
            filled += count
        return bytes(held)


def read_entry(member: Member) -> Entry:
    """Return the entry that a member holds, which is the one its name says; raises `FormatError`."""
    name = Name.parse(member.name)
    try:
        entry = Entry.from_json(json.loads(member.read_small(MAX_ENTRY)))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{member.name} is no entry: {error}") from error
    if name != name_of(entry):
        raise FormatError(f"{member.name} is the entry {name_of(entry)}")
    return entry
