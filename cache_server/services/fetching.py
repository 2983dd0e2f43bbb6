"""Many entries as one stream, read from the store piece by piece."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cache_server.address import Address
from cache_server.database import entries
from cache_server.stores.base import Blob
from client import entry_stream
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from cache_server.database.engine import Database
    from cache_server.stores.base import OpenOutput, Store
    from client.wire import Output

_Named = tuple[str, str]

PIECE = 256 << 10
"""Bytes that are sent at once: small things are put together up to that."""


class EntryStream:
    """The entries of ``wanted`` (kind, key) that stand in the project, in that order, as `client.entry_stream` says.

    ``names`` are the outputs to send, None for all. An entry that is not there, or one of whose outputs is missing,
    short or too large for a member, is left out: its reader asks for it singly, and learns why. Blocks: worker threads
    only. The lock is for a caller that is cancelled in the middle of a read, as in `cache_server.http.outputs`.
    """

    def __init__(
        self,
        store: Store,
        database: Database,
        project: str,
        wanted: Sequence[_Named],
        names: Collection[str] | None,
    ) -> None:
        self._store = store
        self._database = database
        self._project = project
        self._wanted = wanted
        self._names = names
        self._lock = threading.Lock()
        self._closed = False
        self._open = ExitStack()
        self._pieces = self._all()

    def next(self) -> bytes | None:
        """Return the next piece, of about `PIECE` bytes; None at the end. Raises `StoreError` for an output cut off."""
        with self._lock:
            held = bytearray()
            while not self._closed and len(held) < PIECE:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                if not held and len(piece) >= PIECE:
                    return piece  # most of a stream, and never copied
                held += piece
            return bytes(held) or None

    def close(self) -> None:
        """Close what is open, after the read that still runs."""
        with self._lock:
            self._closed = True
            self._open.close()

    def _all(self) -> Iterator[bytes]:
        for begin in range(0, len(self._wanted), entries.BATCH):
            batch = self._wanted[begin : begin + entries.BATCH]
            with self._database.reading() as connection:
                found = entries.documents(connection, self._project, batch)
            for item in batch:
                if item in found:
                    yield from self._entry(Entry.from_json(json.loads(found[item])))
        yield entry_stream.END

    def _entry(self, entry: Entry) -> Iterator[bytes]:
        opened = self._opened(entry)
        if opened is None:
            return
        described = entry_stream.entry_bytes(entry)
        yield entry_stream.head(str(entry_stream.name_of(entry)), len(described))
        yield described
        yield entry_stream.padding(len(described))
        for output, source in opened:
            yield entry_stream.head(str(entry_stream.name_of(entry, output)), output.stored_size)
            yield from source.chunks(0, output.stored_size)
            yield entry_stream.padding(output.stored_size)
        self._open.close()

    def _opened(self, entry: Entry) -> list[tuple[Output, OpenOutput]] | None:
        """Open all outputs that are to be sent, before anything of the entry is; None if one cannot be."""
        address = Address(entry.project, entry.kind, entry.key)
        opened = []
        for output in entry.outputs:
            if self._names is not None and output.name not in self._names:
                continue
            source = self._store.open_output(Blob.of(address, output))
            if source is not None:
                self._open.callback(source.close)
            if (
                source is None
                or source.stored_size != output.stored_size
                or source.stored_size > entry_stream.MAX_MEMBER
            ):
                self._open.close()
                return None
            opened.append((output, source))
        return opened
