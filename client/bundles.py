"""Bundles: a plan's entries in one checked file, for sites that no server reaches.

A zstd frame around a tar (:mod:`client.entry_stream`), whose first member ``manifest.json`` lists every entry with the
digest and size of all that follows, in order. Outputs are held as plain bytes. Equal entries make equal bundles, byte
for byte (with one release of zstd), so that two sites can compare a single digest.

Nothing is ever extracted by path. A reader takes exactly the members that the manifest names, in its order, checks each
against the digest there, and stops at the first byte too many; what the manifest itself may announce is bounded by the
caller. A bundle's digests show damage, not its origin: who vouches for its entries is said by their signatures, and
without a list of trusted keys whoever can write bundles can put code into jobs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from client import entry_stream
from client.encoding import CHUNK, MAX_WINDOW
from client.errors import ConfigurationError, FormatError, WireError
from client.key import canonical_json, check_document
from client.node.tree import temporary_beside
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from client.pulling import Progress
    from client.sources import Source
    from client.wire import Output

FORMAT = "neff-cache-bundle"
SCHEMA = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 256 << 20
"""Bytes of the largest manifest that is read: about a million outputs."""
MAX_BYTES = 256 << 30
"""Plain bytes that a bundle may announce, unless its reader allows more."""
_LEVEL = 3
_GROUP = 64


class Part(NamedTuple):
    """A member as the manifest announces it."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle holds: its members, entries before their outputs. ``size`` is in plain bytes."""

    entries: int
    size: int
    parts: tuple[Part, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as plain JSON values."""
        members = [part._asdict() for part in self.parts]
        return {"format": FORMAT, "schema": SCHEMA, "entries": self.entries, "size": self.size, "members": members}

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Manifest:
        """Return the manifest of a bundle of these entries."""
        parts = []
        for entry in entries:
            described = entry_stream.entry_bytes(entry)
            parts.append(Part(str(entry_stream.name_of(entry)), hashlib.sha256(described).hexdigest(), len(described)))
            parts += [
                Part(str(entry_stream.name_of(entry, output)), output.sha256, output.size) for output in entry.outputs
            ]
        return cls(len(entries), sum(part.size for part in parts), tuple(parts))

    @classmethod
    def parse(cls, raw: bytes) -> Manifest:
        """Read a manifest; raises `FormatError` for one that is none, or that names anything twice."""
        try:
            value = json.loads(raw)
            made = value["format"], value["schema"]
            parts = tuple(
                Part(str(member["name"]), str(member["sha256"]), int(member["size"])) for member in value["members"]
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(f"its manifest cannot be read: {error}") from error
        if made != (FORMAT, SCHEMA):
            raise FormatError(f"its format is not known here: expected {FORMAT}, schema {SCHEMA}")
        names = [entry_stream.Name.parse(part.name) for part in parts]
        if len(set(names)) != len(names) or any(part.size < 0 for part in parts):
            raise FormatError("its manifest names a member twice, or with a size below zero")
        entries = sum(name.output is None for name in names)
        size = sum(part.size for part in parts)
        if (value.get("entries"), value.get("size")) != (entries, size):
            raise FormatError("its manifest does not add up")
        return cls(entries, size, parts)


def export(
    path: Path, sources: Sequence[tuple[Source, Sequence[Entry]]], progress: Progress, *, force: bool = False
) -> Manifest:
    """Write the bundle of all ``entries``, each taken from its source; whole, or not at all.

    Raises `ConfigurationError` for a file that is there already or cannot be written, `FormatError` if an entry was
    withdrawn meanwhile, `client.errors.TransportError`.
    """
    ordered = [(source, sorted(entries, key=_order)) for source, entries in sources]
    ordered.sort(key=lambda item: _order(item[1][0]) if item[1] else ("", "", ""))
    manifest = Manifest.of([entry for _, entries in ordered for entry in entries])
    progress.total(manifest.entries, manifest.size)
    with _written(path, force=force) as file, _compressed(file) as stream:
        described = canonical_json(manifest.to_json())
        _write(stream, MANIFEST, described)
        for source, entries in ordered:
            for entry, outputs in _in_order(source, entries):
                _write(stream, str(entry_stream.name_of(entry)), entry_stream.entry_bytes(entry))
                for output in entry.outputs:
                    _write(stream, str(entry_stream.name_of(entry, output)), outputs[output.name])
                progress.done(1, sum(map(len, outputs.values())))
        stream.write(entry_stream.END)
    return manifest


class BundleError(FormatError):
    """A file that is no sound bundle, or one that its reader does not want; the message says which, and why."""


def read(
    path: Path, *, max_bytes: int = MAX_BYTES, progress: Progress, announced: Callable[[Manifest], object] | None = None
) -> Iterator[tuple[Entry, dict[str, bytes]]]:
    """Yield the entries of a bundle with the plain bytes of their outputs, all of them checked.

    ``announced`` is called with the manifest before anything else is read. That a file ends where it should is known
    only when the last entry was taken. Raises `BundleError` for anything but a sound bundle of at most ``max_bytes``,
    `ConfigurationError` for a file that cannot be read.
    """
    try:
        with _opened(path) as plain:
            members = entry_stream.Members(plain)
            manifest = Manifest.parse(members.expect(MANIFEST).read_small(MAX_MANIFEST))
            _check_announced(manifest, max_bytes)
            if announced is not None:
                announced(manifest)
            progress.total(manifest.entries, manifest.size)
            yield from _entries(members, manifest, progress)
            _check_end(members, plain)
    except FormatError as error:
        raise BundleError(f"the bundle {path} is refused: {error}") from error


def _check_announced(manifest: Manifest, max_bytes: int) -> None:
    if manifest.size > max_bytes:
        raise FormatError(
            f"it announces {manifest.size} bytes, more than the {max_bytes} that are read: see --max-bytes"
        )


def _check_end(members: entry_stream.Members, plain: _Plain) -> None:
    if members.next() is not None or plain.read(1):
        raise FormatError("it goes on after what its manifest names")


def _entries(
    members: entry_stream.Members, manifest: Manifest, progress: Progress
) -> Iterator[tuple[Entry, dict[str, bytes]]]:
    parts = iter(manifest.parts)
    for part in parts:
        entry = _read_entry(members, part)
        outputs = {output.name: _read_output(members, entry, output, next(parts, None)) for output in entry.outputs}
        yield entry, outputs
        progress.done(1, sum(map(len, outputs.values())))


def verify(
    path: Path,
    *,
    max_bytes: int = MAX_BYTES,
    progress: Progress,
    each: Callable[[Entry], object] = lambda _: None,
) -> Manifest:
    """Read a bundle to its end and return its manifest; raises as `read`. ``each`` is called with every entry."""
    found: list[Manifest] = []
    for entry, _ in read(path, max_bytes=max_bytes, progress=progress, announced=found.append):
        each(entry)
    return found[0]


def _order(entry: Entry) -> tuple[str, str, str]:
    return entry.project, str(entry.kind), entry.key


def _in_order(source: Source, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Mapping[str, bytes]]]:
    """Fetch ``entries`` in few requests, and yield them in the order given."""
    for begin in range(0, len(entries), _GROUP):
        group = entries[begin : begin + _GROUP]
        with closing(source.fetch(group, None)) as stream:
            fetched = {(entry.kind, entry.key): outputs for entry, outputs in stream}
        for entry in group:
            outputs = fetched.get((entry.kind, entry.key))
            if outputs is None:
                raise FormatError(f"{entry.kind}/{entry.key} was withdrawn while it was exported: try again")
            if any(output.name not in outputs for output in entry.outputs):
                raise ConfigurationError(
                    f"{entry.kind}/{entry.key} is signed together with outputs that are not in the node tier: "
                    "export it from the shared cache"
                )
            yield entry, outputs


def _read_entry(members: entry_stream.Members, part: Part) -> Entry:
    member = members.expect(part.name)
    raw = member.read_small(entry_stream.MAX_ENTRY)
    _check(part, raw)
    try:
        entry = Entry.from_json(json.loads(raw))
        if entry.key_document is not None:
            check_document(entry.key_document, kind=entry.kind, key=entry.key)
    except (ValueError, RecursionError, WireError) as error:
        raise FormatError(f"{part.name} is no entry: {error}") from error
    if str(entry_stream.name_of(entry)) != part.name:
        raise FormatError(f"{part.name} is the entry {entry_stream.name_of(entry)}")
    return entry


def _read_output(members: entry_stream.Members, entry: Entry, output: Output, part: Part | None) -> bytes:
    name = str(entry_stream.name_of(entry, output))
    if part != Part(name, output.sha256, output.size):
        raise FormatError(f"the manifest and the entry disagree about {name}")
    return members.expect(name).read_plain(output, "identity")


def _check(part: Part, raw: bytes) -> None:
    if len(raw) != part.size or hashlib.sha256(raw).hexdigest() != part.sha256:
        raise FormatError(f"{part.name} has not the digest that the manifest names")


def _write(stream: IO[bytes], name: str, content: bytes) -> None:
    stream.write(entry_stream.head(name, len(content)))
    stream.write(content)
    stream.write(entry_stream.padding(len(content)))


@contextmanager
def _compressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    import zstandard  # noqa: PLC0415 - only bundles need it here

    # one thread and no content size: what the frame looks like depends on its content alone
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    with compressor.stream_writer(file, closefd=False) as stream:
        yield stream


@contextmanager
def _written(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """Give a file that takes the place of ``path`` when it is whole, and is gone otherwise."""
    if path.exists() and not force:
        raise ConfigurationError(f"{path} is there already: name another file, or use --force")
    temporary = temporary_beside(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigurationError(f"the bundle {path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


class _Plain(io.RawIOBase):
    """The bytes inside a bundle's zstd frame, whose errors are `FormatError`."""

    def __init__(self, reader: Any, errors: type[Exception]) -> None:
        super().__init__()
        self._reader = reader
        self._errors = errors

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except self._errors as error:
            raise FormatError(f"it is no bundle, or a damaged one: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[_Plain]:
    import zstandard  # noqa: PLC0415 - see above

    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    try:
        with (
            path.open("rb") as file,
            decompressor.stream_reader(file, read_size=CHUNK, read_across_frames=True, closefd=False) as reader,
        ):
            yield _Plain(reader, zstandard.ZstdError)
    except OSError as error:
        raise ConfigurationError(f"the bundle {path} cannot be read: {error.strerror or error}") from error
