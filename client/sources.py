"""Where entries are taken from in numbers: a cache server in few requests, any other shared cache one by one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from client.names import MAIN_OUTPUT
from client.node.tier import DamagedEntryError
from client.server_calls import MAX_LOOKUP, ServerCalls
from client.transports import open_transport
from client.transports.base import Damaged
from client.wire import Holder, Ready

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence

    from client.names import Kind
    from client.node.tier import NodeTier, Stored
    from client.plans import Wanted
    from client.transports.base import Transport
    from client.wire import Entry

_SINGLY = 32
_NOBODY = Holder("", 0)


class Source(Protocol):
    """One shared cache and one project in it. Safe to use from several threads.

    Failure contract as in `client.transports.base.Transport`: what is not there is left out, a cache that cannot be
    asked is `client.errors.TransportError`, so that the two are never mistaken for each other.
    """

    @property
    def address(self) -> str:
        """Where it is, as shown to people."""

    @property
    def batch(self) -> int:
        """How many entries are best asked for at once."""

    def find(self, wanted: Sequence[Wanted]) -> list[Entry]:
        """Return the entries that stand there with their outputs, key documents included, in the order asked."""

    def fetch(
        self, entries: Sequence[Entry], names: Collection[str] | None
    ) -> Generator[tuple[Entry, dict[str, bytes] | None]]:
        """Yield each of ``entries`` once, with the plain bytes of its outputs ``names`` (None: all), digests checked.

        None in place of the outputs: it is gone, or damaged. ``close`` the generator if it is not read to its end.
        """

    def close(self) -> None:
        """Drop connections."""


def open_source(url: str, project: str, environ: Mapping[str, str]) -> Source:
    """Return the shared cache at ``url``, without connecting; raises `client.errors.ConfigurationError`."""
    transport = open_transport(url, project, environ)
    if is_server(url):
        return ServerSource(ServerCalls(url, project, environ), transport)
    return DirectSource(transport)


def is_server(url: str) -> bool:
    """Return whether an address is that of a cache server."""
    return url.lower().startswith(("http://", "https://"))


class DirectSource:
    """A folder or a bucket."""

    batch = _SINGLY

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def address(self) -> str:
        """See `Source.address`."""
        return self._transport.address

    def find(self, wanted: Sequence[Wanted]) -> list[Entry]:
        """See `Source.find`. Only ever asks: one that may not publish is granted no lease."""
        found = []
        for each in wanted:
            answer = self._transport.acquire(each.kind, each.key, _NOBODY, may_publish=False)
            if isinstance(answer, Ready):
                found.append(answer.entry)
        return found

    def fetch(
        self, entries: Sequence[Entry], names: Collection[str] | None
    ) -> Generator[tuple[Entry, dict[str, bytes] | None]]:
        """See `Source.fetch`."""
        for entry in entries:
            yield entry, read_singly(self._transport, entry, names)

    def close(self) -> None:
        """See `Source.close`."""
        self._transport.close()


class NodeSource:
    """A node tier, which holds programs alone: its entries name nothing else, unless they are signed."""

    batch = _SINGLY

    def __init__(self, tier: NodeTier) -> None:
        self._tier = tier

    @property
    def address(self) -> str:
        """See `Source.address`."""
        return str(self._tier.tree.root)

    def find(self, wanted: Sequence[Wanted]) -> list[Entry]:
        """See `Source.find`. Raises `OSError` and `client.node.permissions.UntrustedError` of the tier."""
        stored = (self._read(each.kind, each.key) for each in wanted)
        return [_for_program_alone(found.entry) for found in stored if found is not None]

    def fetch(
        self, entries: Sequence[Entry], names: Collection[str] | None
    ) -> Generator[tuple[Entry, dict[str, bytes] | None]]:
        """See `Source.fetch`."""
        for entry in entries:
            found = self._read(entry.kind, entry.key)
            wanted = names is None or MAIN_OUTPUT in names
            yield entry, None if found is None else {MAIN_OUTPUT: found.neff} if wanted else {}

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def _read(self, kind: Kind, key: str) -> Stored | None:
        try:
            return self._tier.get(kind, key)
        except DamagedEntryError:
            return None


def _for_program_alone(entry: Entry) -> Entry:
    """Return an entry that names its program alone; a signed one as it is, because its signature covers the names."""
    main = entry.output()
    return entry if main is None or entry.signature is not None else replace(entry, outputs=(main,))


class ServerSource:
    """A cache server."""

    batch = MAX_LOOKUP

    def __init__(self, calls: ServerCalls, transport: Transport) -> None:
        self._calls = calls
        self._transport = transport

    @property
    def address(self) -> str:
        """See `Source.address`."""
        return self._calls.address

    def find(self, wanted: Sequence[Wanted]) -> list[Entry]:
        """See `Source.find`."""
        found = self._calls.lookup([each.name for each in wanted])
        return [found[each.name] for each in wanted if each.name in found]

    def fetch(
        self, entries: Sequence[Entry], names: Collection[str] | None
    ) -> Generator[tuple[Entry, dict[str, bytes] | None]]:
        """See `Source.fetch`. A single entry is taken by digest; several in one stream, and what it lacks singly."""
        left = {(entry.kind, entry.key): entry for entry in entries}
        if len(left) > 1:
            with closing(self._calls.fetch(list(left.values()), names)) as stream:
                for entry, outputs in stream:
                    del left[entry.kind, entry.key]
                    yield entry, outputs
        for entry in left.values():
            yield entry, read_singly(self._transport, entry, names)

    def close(self) -> None:
        """See `Source.close`."""
        self._calls.close()
        self._transport.close()


def read_singly(transport: Transport, entry: Entry, names: Collection[str] | None) -> dict[str, bytes] | None:
    """Return an entry's outputs by name, read one by one; None if one is gone, or is damaged and was reported so."""
    found = {}
    for output in entry.outputs:
        if names is not None and output.name not in names:
            continue
        try:
            data = transport.read_output(entry, output.name)
        except Damaged as error:
            transport.suspect(entry.kind, entry.key, error.sha256)
            return None
        if data is None:
            return None
        found[output.name] = data
    return found
