"""The seam between a client and whatever is shared: an HTTP server, a folder, a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from client.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.errors import Failure
    from client.names import Kind
    from client.wire import Entry, Granted, Holder, LeaseAnswer

Verdict: TypeAlias = Literal["sound", "quarantined", "absent"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A hit: the entry (its key document may be missing) and the plain bytes of ``model.neff``, digest checked."""

    entry: Entry
    neff: bytes


class Withdrawn(NamedTuple):
    """An entry that was withdrawn as poisoned: its key, and the digest of its main output.

    A good entry may have been published under the key since; it has another digest.
    """

    kind: Kind
    key: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Published:
    """What stands in the store now: our entry (``created``), or the one that was there first."""

    entry: Entry
    created: bool


class Damaged(TransportError):  # noqa: N818 - reads as the state it reports
    """An output's bytes are not those its entry names. ``sha256`` is the digest that the entry names."""

    def __init__(self, entry: Entry, sha256: str, found: str) -> None:
        super().__init__(f"an output of {entry.key} should hash to {sha256}, but hashes to {found}")
        self.entry = entry
        self.sha256 = sha256


class Unwanted(TransportError):  # noqa: N818
    """An entry that the caller would not use, so that its program was not fetched; see `client.transports.wanted`."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(f"{entry.kind}/{entry.key} is not one that was wanted")
        self.entry = entry


class TooLarge(TransportError):  # noqa: N818
    """An output that holds more bytes, by its entry's word, than this process may read into memory."""


class TooSlow(TransportError):  # noqa: N818
    """A fetch that would take longer than the compile did; only callers that can compile instead are told so."""


class Transport(Protocol):
    """One shared cache and one project in it. Safe to use from several threads; not across a fork.

    Failure contract of every method: `client.errors.Unreachable` for no connection, no answer in time or a broken
    answer; `Denied` for no right; `Refused` for a server's own no. An absent entry is None, never an exception. Bytes
    handed out have the digest their entry names: otherwise `fetch` and `read_output` raise
    `Damaged`.

    One with an attribute ``heeds_patience`` cuts its waits to `client.transports.patience.current`, and its `fetch`
    raises `TooSlow`. Any other is watched from outside (`client.bounded.watched`), and notes there what arrives.
    """

    @property
    def address(self) -> str:
        """Where it is, as shown to people: never with a password or token."""

    def fetch(self, kind: Kind, key: str) -> Fetched | None:
        """Return entry and ``model.neff`` in one round trip, or None."""

    def entry(self, kind: Kind, key: str) -> Entry | None:
        """Return the whole entry, key document included, or None."""

    def read_output(self, entry: Entry, name: str) -> bytes | None:
        """Return the plain bytes of an output, or None if entry or output is gone."""

    def publish(self, entry: Entry, outputs: Mapping[str, bytes], lease: Granted | None) -> Published:
        """Store ``outputs`` (plain bytes by name), then the entry; create-only, and ends any lease on the key."""

    def acquire(  # the arguments are those of the wire
        self,
        kind: Kind,
        key: str,
        holder: Holder,
        *,
        wait_seconds: float = 0,
        retry_failed: bool = False,
        seen_generation: int | None = None,
        may_publish: bool = True,
    ) -> LeaseAnswer:
        """Ask for the right to compile, or wait up to ``wait_seconds`` (0 to 25) for its holder."""

    def renew(self, kind: Kind, key: str, lease: Granted) -> None:
        """Heartbeat; raises `client.errors.LeaseLost`."""

    def release(self, kind: Kind, key: str, lease: Granted, failure: Failure | None = None) -> None:
        """Give the lease back, with the failure if there is one. Giving back a lost lease is no error."""

    def suspect(self, kind: Kind, key: str, sha256: str) -> Verdict:
        """Have a damaged output verified where it is stored, and set aside if it is damaged."""

    def is_whole(self, entry: Entry) -> bool:
        """Return whether an entry that stands there has all its outputs, by their sizes.

        One that lacks some is set aside, as by `suspect`, so that its key is free.
        """

    def revoked(self) -> frozenset[Withdrawn]:
        """Return the entries that were withdrawn as poisoned."""

    def close(self) -> None:
        """Drop connections; the transport may be used again afterwards."""


@runtime_checkable
class Reporting(Protocol):
    """A transport whose other end wants to know what a process had from tiers that the other end never sees."""

    def report(self, summary: Mapping[str, Any]) -> None:
        """Send the summary of a process at its exit (`client.statistics.Statistics.to_json`, or a part of it)."""
