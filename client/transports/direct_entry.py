"""One key in a folder or bucket that several nodes share with no server between: its entry, outputs and direct lease.

What is the same wherever the files lie stands here; how they are read and written is said by
`client.transports.entry_folder` and `client.transports.s3_entry`.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from client import encoding
from client.errors import FormatError, Unreachable
from client.layout import ENTRY_FILE, output_file
from client.transports import patience, publishing
from client.transports.base import Published
from client.wire import Entry, Ready

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from client.names import Kind
    from client.wire import Output

MAX_SMALL_FILE = 16 << 20
"""Bytes of the largest description of an entry, and of the largest lease, that is read."""
_ATTEMPTS = 3


class Opened(NamedTuple):
    """A file held open: where its bytes come from, and how many there are."""

    source: io.RawIOBase
    size: int


class DirectEntry(ABC):
    """One key's files; also the `client.transports.direct_lease.LeaseStore` of its lease.

    Methods raise `client.errors.TransportError`. What is damaged is set aside only by callers who hold the lease, or
    whose create-only write stands against it.
    """

    def __init__(self, project: str, kind: Kind, key: str) -> None:
        self._identity = (project, kind, key)

    # What each kind of store does its own way

    @property
    @abstractmethod
    def where(self) -> str:
        """Where the key's files lie, as shown to people."""

    @abstractmethod
    def make(self) -> None:
        """Get ready to write: raises `client.errors.Denied` without the right to, `Refused` without create-only."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[Opened | None]:
        """Open a file for reading, None if it is not there. Errors while it is read are `TransportError` too."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None if it is not there."""

    @abstractmethod
    def store(self, name: str, data: bytes) -> bool:
        """Create a file whole and for good; False if there is one of that name, which is then left alone."""

    @abstractmethod
    def set_aside(self, *names: str) -> None:
        """Move files to a ``bad-<random>`` folder of their own, in the order given; one that is gone is no error."""

    @abstractmethod
    def remove_leftovers(self) -> None:
        """Remove what killed writers left here, once it serves nobody."""

    @abstractmethod
    def now(self) -> float:
        """See `client.transports.direct_lease.LeaseStore`, as for all that follow."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all files here."""

    @abstractmethod
    def read(self, name: str) -> tuple[bytes, float] | None:
        """Return a small file's bytes and the time of its last change, or None if it is not there or too large."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create a small file whole; False if its name is taken."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Create a small file whole, or replace it."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""

    # The entry

    def entry(self) -> Entry | None:
        """Return the entry; None if there is none, or none that can be read as this key's."""
        found = self.read(ENTRY_FILE)
        if found is None:
            return None
        try:
            entry = Entry.from_json(json.loads(found[0]))
        except (ValueError, RecursionError):
            self._check_sent(ENTRY_FILE, len(found[0]))
            return None
        return entry if (entry.project, entry.kind, entry.key) == self._identity else None

    def ready(self) -> Ready | None:
        """Return the entry if its outputs are there with the size they should have."""
        entry = self.entry()
        return Ready(entry) if entry is not None and all(map(self.is_stored, entry.outputs)) else None

    def clear(self) -> None:
        """Set aside an entry that is there and yet not ready, so that its name is free."""
        if self.size(ENTRY_FILE) is not None and self.ready() is None and self.ready() is None:
            self.set_aside(ENTRY_FILE)

    def publish(self, entry: Entry, outputs: Mapping[str, bytes]) -> Published:
        """Store the outputs, then the entry; or return the entry that is there already."""
        stored = self.entry()
        if stored is not None:
            return Published(stored, created=False)
        entry = replace(entry, outputs=tuple(self._store(entry, each, outputs[each.name]) for each in entry.outputs))
        for _ in range(_ATTEMPTS):
            if self.store(ENTRY_FILE, json.dumps(entry.to_json()).encode()):
                return Published(entry, created=True)
            stored = self._taken()
            if stored is not None:
                return Published(stored, created=False)
            self.set_aside(ENTRY_FILE)
        raise Unreachable(f"{self.where}/{ENTRY_FILE} cannot be read, and comes back as often as it is set aside")

    def _taken(self) -> Entry | None:
        """Return the entry whose name was found to be taken; None if it cannot be read."""
        return self.entry()

    # Its outputs

    def output(self, output: Output) -> tuple[bytes | None, str]:
        """Return the plain bytes, or None if they are missing or wrong; and the digest or the fault that was found."""
        digest, caller = hashlib.sha256(), patience.current()

        def seen(piece: memoryview) -> None:
            digest.update(piece)
            caller.arrived(piece)

        name = output_file(output.sha256, output.encoding)
        with self.open(name) as opened:
            if opened is None:
                self._check_sent(name, None)
                return None, "nothing: there is no file"
            source, size = opened
            if size != output.stored_size:
                self._check_sent(name, size)
                return None, f"nothing: its file holds {size} bytes in place of {output.stored_size}"
            try:
                if output.encoding == "zstd":
                    plain: bytes | None = encoding.read_decoded(cast("IO[bytes]", source), output.size, seen)
                else:
                    plain = encoding.read_exactly(source.readinto, size, seen)
            except FormatError as error:
                return None, f"nothing: {error}"
        found = digest.hexdigest()
        return (plain if found == output.sha256 else None), found

    def is_sound(self, output: Output) -> bool:
        """Return whether an output's bytes have their digest.

        An error while reading is raised, never a verdict; so is a fault that a second read does not find.
        """
        plain, first = self.output(output)
        if plain is not None:
            return True
        plain, second = self.output(output)
        if plain is None and second != first:
            raise Unreachable(f"two reads of {self.where} differ: first {first}, then {second}")
        return plain is not None

    def _check_sent(self, name: str, sent: int | None) -> None:
        """Raise `Unreachable` where an error page, or a 404, may stand in for a file: its own size must agree."""
        size = self.size(name)
        if size != sent:
            raise Unreachable(f"{self.where}/{name} was sent with {sent or 0} bytes, and has {size or 0}")

    def is_stored(self, output: Output) -> bool:
        """Return whether an output's file is there with the size it should have."""
        return self.size(output_file(output.sha256, output.encoding)) == output.stored_size

    def _store(self, entry: Entry, output: Output, data: bytes) -> Output:
        """Store an output; return it as it is stored. One that is there already is kept if its bytes are right."""
        output, packed = publishing.as_stored(entry, output, data)
        name = output_file(output.sha256, output.encoding)
        for _ in range(_ATTEMPTS):
            if self.store(name, packed):
                return output
            size = self.size(name)
            # Another writer's zstd may have made another frame of the same bytes; only a signature fixes its size.
            fixed = size is None or entry.signature is not None or output.encoding == "identity"
            there = output if fixed or size is None else replace(output, stored_size=size)
            if self.is_sound(there):
                return there
            self.set_aside(name)
        raise Unreachable(f"{self.where}/{name} is damaged, and comes back as often as it is set aside")
