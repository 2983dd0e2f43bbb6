"""The folder of one key on a shared folder: its entry, its outputs, its direct lease, and what was set aside there."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from client import encoding
from client.errors import FormatError, Unreachable
from client.layout import BAD_PREFIX, ENTRY_FILE, TEMPORARY_PREFIX, entry_folder, output_file
from client.transports import publishing, shared_files
from client.transports.base import Published
from client.wire import Entry, Ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.names import Kind
    from client.transports.direct_lease import Waiting
    from client.wire import Output

_MAX_SMALL_FILE = 16 << 20
_LEFTOVER_SECONDS = 24 * 3600.0
_CLAIM_SECONDS = 2.0
_CLAIM_POLL_SECONDS = 0.1
_ATTEMPTS = 3


class EntryFolder:
    """One key's folder; also the `client.transports.direct_lease.LeaseStore` of its lease.

    Methods raise `client.errors.TransportError`. What is damaged is set aside only by callers who hold the lease, or
    whose create-only write stands against it.
    """

    def __init__(self, files: shared_files.SharedFolder, project: str, kind: Kind, key: str, waiting: Waiting) -> None:
        self._files = files
        self._identity = (project, kind, key)
        self._waiting = waiting
        self.path = files.root / entry_folder(project, kind, key)

    def make(self) -> None:
        """Make the folder, and find out how names are kept to their first writer in it."""
        self._files.make_folder(self.path)
        self._files.create_only(self.path)

    # The entry

    def entry(self) -> Entry | None:
        """Return the entry; None if there is none, or none that can be read as this key's."""
        found = self.read(ENTRY_FILE)
        if found is None:
            return None
        try:
            entry = Entry.from_json(json.loads(found[0]))
        except (ValueError, RecursionError):
            return None
        return entry if (entry.project, entry.kind, entry.key) == self._identity else None

    def ready(self) -> Ready | None:
        """Return the entry if its outputs are there with the size they should have."""
        entry = self.entry()
        return Ready(entry) if entry is not None and all(map(self._is_stored, entry.outputs)) else None

    def clear(self) -> None:
        """Set aside an entry that is there and yet not ready, so that its name is free."""
        if (self.path / ENTRY_FILE).exists() and self.ready() is None:
            self.set_aside(ENTRY_FILE)

    def publish(self, entry: Entry, outputs: Mapping[str, bytes]) -> Published:
        """Store the outputs, then the entry; or return the entry that is there already."""
        stored = self.entry()
        if stored is not None:
            return Published(stored, created=False)
        entry = replace(entry, outputs=tuple(self._store(entry, each, outputs[each.name]) for each in entry.outputs))
        for _ in range(_ATTEMPTS):
            if self._files.create(self.path / ENTRY_FILE, json.dumps(entry.to_json()).encode()):
                return Published(entry, created=True)
            stored = self._awaited_entry()
            if stored is not None:
                return Published(stored, created=False)
            self.set_aside(ENTRY_FILE)
        raise Unreachable(f"{self.path / ENTRY_FILE} cannot be read, and comes back as often as it is set aside")

    def _awaited_entry(self) -> Entry | None:
        """Read an entry whose name is taken; where names are claimed first, its bytes follow a moment later."""
        deadline = self._waiting.monotonic() + _CLAIM_SECONDS
        while (stored := self.entry()) is None and self._waiting.monotonic() < deadline:
            self._waiting.sleep(_CLAIM_POLL_SECONDS)
        return stored

    # Its outputs

    def output(self, output: Output) -> tuple[bytes | None, str]:
        """Return the plain bytes, or None if they are missing or wrong; and the digest or the fault that was found."""
        digest = hashlib.sha256()
        with shared_files.opened(self.path / output_file(output.sha256, output.encoding)) as file:
            if file is None:
                return None, "nothing: there is no file"
            size = os.fstat(file.fileno()).st_size
            if size != output.stored_size:
                return None, f"nothing: its file holds {size} bytes in place of {output.stored_size}"
            try:
                if output.encoding == "zstd":
                    plain: bytes | None = encoding.read_decoded(file, output.size, digest.update)
                else:
                    plain = encoding.read_exactly(file.readinto, size, digest.update)
            except FormatError as error:
                return None, f"nothing: {error}"
        found = digest.hexdigest()
        return (plain if found == output.sha256 else None), found

    def is_sound(self, output: Output) -> bool:
        """Return whether an output's bytes have their digest; an error while reading is raised, never a verdict."""
        return self.output(output)[0] is not None

    def _is_stored(self, output: Output) -> bool:
        return self._stored_size(output) == output.stored_size

    def _stored_size(self, output: Output) -> int | None:
        with shared_files.opened(self.path / output_file(output.sha256, output.encoding)) as file:
            return None if file is None else os.fstat(file.fileno()).st_size

    def _store(self, entry: Entry, output: Output, data: bytes) -> Output:
        """Store an output; return it as it is stored. One that is there already is kept if its bytes are right."""
        output, packed = publishing.as_stored(entry, output, data)
        name = output_file(output.sha256, output.encoding)
        for _ in range(_ATTEMPTS):
            if self._files.create(self.path / name, packed):
                return output
            size = self._stored_size(output)
            # Another writer's zstd may have made another frame of the same bytes; only a signature fixes its size.
            fixed = size is None or entry.signature is not None or output.encoding == "identity"
            there = output if fixed or size is None else replace(output, stored_size=size)
            if self.is_sound(there):
                return there
            self.set_aside(name)
        raise Unreachable(f"{self.path / name} is damaged, and comes back as often as it is set aside")

    # What is left over

    def set_aside(self, *names: str) -> None:
        """Move files to a ``bad-<random>`` folder of their own, in the order given; one that is gone is no error."""
        bad = self.path / f"{BAD_PREFIX}{secrets.token_hex(8)}"
        self._files.make_folder(bad)
        for name in names:
            with shared_files.translated("set aside", self.path / name), suppress(FileNotFoundError):
                (self.path / name).rename(bad / name)

    def remove_leftovers(self) -> None:
        """Remove what killed writers left a day ago or earlier, by the clock that stamps files here."""
        leftovers = [self.path / name for name in self.names() if name.startswith(TEMPORARY_PREFIX)]
        now = self.now() if leftovers else 0.0
        for path in leftovers:
            with shared_files.translated("remove", path), suppress(FileNotFoundError):
                if path.stat().st_mtime + _LEFTOVER_SECONDS < now:
                    path.unlink()

    # The lease's files

    def now(self) -> float:
        """Return the time by the clock that stamps files here, in seconds."""
        return self._files.now(self.path)

    def names(self) -> list[str]:
        """Return the names of all files here."""
        with shared_files.translated("list", self.path), suppress(FileNotFoundError):
            return os.listdir(self.path)  # noqa: PTH208 - names are all that is wanted
        return []

    def read(self, name: str) -> tuple[bytes, float] | None:
        """Return a small file's bytes and the time of its last change, or None."""
        return shared_files.read(self.path / name, _MAX_SMALL_FILE)

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file whole; False if its name is taken."""
        return self._files.create(self.path / name, data, durable=False)

    def replace(self, name: str, data: bytes) -> None:
        """Create a small file whole, or replace it."""
        self._files.replace(self.path / name, data)

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        self._files.remove(self.path / name)
