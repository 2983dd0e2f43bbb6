"""The shared cache, asked for foreign entries: which there are, all of their outputs, and to keep one more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from client import layout
from client.errors import WireError
from client.foreign.names import ForeignName
from client.listing import folder_entries
from client.names import Kind
from client.plans import Wanted
from client.server_calls import ServerCalls
from client.sources import DirectSource, ServerSource, is_server
from client.transports import open_transport
from client.transports.http import HttpTransport
from client.transports.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from client.sources import Source
    from client.transports.base import Transport
    from client.wire import Entry

_PATIENT = replace(DEFAULT_LIMITS, without_lease=DEFAULT_LIMITS.upload)
"""Nobody waits for what is mirrored: an upload without a lease may take as long as one with a lease."""


class SharedForeign:
    """One project's foreign entries. Raises `client.errors.TransportError` if the shared cache cannot be asked.

    ``folder`` is the shared cache's own if it is a directory.
    """

    def __init__(self, url: str, project: str, environ: Mapping[str, str], *, folder: Path | None) -> None:
        """Raise `client.errors.ConfigurationError` for an address that cannot be followed."""
        self.project = project
        self._url = url
        self._folder = folder
        self._calls: ServerCalls | None = None
        if is_server(url):
            self._calls = ServerCalls(url, project, environ)
            self._transport: Transport = HttpTransport(url, project, environ, limits=_PATIENT)
            self._source: Source = ServerSource(self._calls, self._transport)
        else:
            self._transport = open_transport(url, project, environ)
            self._source = DirectSource(self._transport)

    @property
    def address(self) -> str:
        """Where it is, as shown to people."""
        return self._transport.address

    def close(self) -> None:
        """Drop connections."""
        self._source.close()

    def find(self, keys: Sequence[str]) -> dict[str, Entry]:
        """Return those of the entries that stand there, by key."""
        wanted = [Wanted(self.project, Kind.FOREIGN, key) for key in keys]
        step = self._source.batch
        found = (entry for at in range(0, len(wanted), step) for entry in self._source.find(wanted[at : at + step]))
        return {entry.key: entry for entry in found}

    def is_whole(self, entry: Entry) -> bool:
        """Return whether an entry that was found has all its outputs; one that lacks some is set aside.

        A folder or bucket says so of what is found; a server finds by its index alone.
        """
        return self._calls is None or self._transport.is_whole(entry)

    def check_readable(self) -> None:
        """Raise `client.errors.Denied` if a server would not show us foreign entries: they would seem to be missing."""
        if self._calls is not None:
            next(self._calls.keys(Kind.FOREIGN, compiler_version="none"), None)

    def built_by(self, kept_as: str, version: str, target: str) -> list[Entry]:
        """Return the entries of a layout that are of this compiler and target.

        A server is asked for those of the compiler alone; of a folder or a bucket all descriptions are read.
        """
        entries: Iterable[Entry]
        if self._calls is not None:
            entries = self.find(list(self._calls.keys(Kind.FOREIGN, compiler_version=version))).values()
        elif self._folder is not None:
            entries = folder_entries(self._folder, self.project, (Kind.FOREIGN,))
        else:
            entries = self.find(list(self._keys_in_bucket())).values()
        return [entry for entry in entries if _is_of(entry, kept_as, version, target)]

    def fetch(self, entries: Sequence[Entry]) -> Generator[tuple[Entry, dict[str, bytes] | None]]:
        """Yield each entry with all of its outputs, digests checked; None: it is gone, or damaged."""
        return self._source.fetch(entries, None)

    def publish(self, entry: Entry, outputs: Mapping[str, bytes]) -> bool:
        """Store an entry; False if one stood there before."""
        return self._transport.publish(entry, outputs, None).created

    def _keys_in_bucket(self) -> Iterator[str]:
        from client.foreign.bucket_tree import BucketTree  # noqa: PLC0415 - only a bucket needs it

        tree = BucketTree(self._url)
        try:
            start = f"{self.project}/{Kind.FOREIGN.value}/"
            for item in tree.files(start):
                parts = item.path.removeprefix(start).split("/")
                if len(parts) == 3 and parts[2] == layout.ENTRY_FILE:  # noqa: PLR2004 - <aa>/<key>/entry.json
                    yield parts[1]
        finally:
            tree.close()


def name_of(entry: Entry) -> ForeignName:
    """Return what an entry is called; raises `WireError` if its document is none of a foreign entry's."""
    return ForeignName.of(entry.key_document or {})


def _is_of(entry: Entry, kept_as: str, version: str, target: str) -> bool:
    try:
        name = name_of(entry)
    except WireError:
        return False
    return (name.layout, name.compiler_version, name.target) == (kept_as, version, target)
