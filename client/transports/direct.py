"""A shared cache with no server: what a folder and a bucket have in common.

There are no tenants and no trust levels here: whoever may write to the store may write entries. Reads check every byte
against the entry's digests; writes are create-only; the right to compile is a direct lease
(`client.transports.direct_lease`). A store that may only be read serves hits and grants nothing.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING

from client.errors import Denied, LeaseLost, Refused, TransportError, Unreachable
from client.layout import ENTRY_FILE, output_file
from client.names import MAIN_OUTPUT, check_project
from client.transports import direct_lease, patience, publishing, wanted
from client.transports.base import Damaged, Fetched, Published
from client.transports.limits import DEFAULT_LIMITS
from client.wire import Entry, Granted, Holder, Ready, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client.errors import Failure
    from client.names import Kind
    from client.transports.base import Verdict, Withdrawn
    from client.transports.direct_entry import DirectEntry
    from client.wire import LeaseAnswer

_REPAIR_WAIT_SECONDS = 10.0
_ENDINGS = 3


class DirectTransport(ABC):
    """`client.transports.base.Transport` over files that all nodes reach; `_at` says where those of a key are.

    ``lease_seconds`` is the time to live of leases taken here. Clock, sleep and randomness may be passed in.
    """

    def __init__(
        self,
        project: str,
        *,
        lease_seconds: float = direct_lease.TTL_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._project = check_project(project)
        self._lease_seconds = lease_seconds
        self._waiting = direct_lease.Waiting(monotonic, sleep, uniform)
        self._stillness = direct_lease.Stillness(monotonic)

    @property
    @abstractmethod
    def address(self) -> str:
        """See `client.transports.base.Transport.address`."""

    @abstractmethod
    def close(self) -> None:
        """See `client.transports.base.Transport.close`."""

    @abstractmethod
    def _at(self, kind: Kind, key: str) -> DirectEntry:
        """Return a key's files, for the use of one call."""

    def fetch(self, kind: Kind, key: str) -> Fetched | None:
        """See `client.transports.base.Transport.fetch`."""
        entry = self.entry(kind, key)
        if entry is not None:
            wanted.check(entry)
        output = None if entry is None else entry.output()
        if entry is not None and output is not None:
            patience.current().pace(DEFAULT_LIMITS, output, entry.compile_seconds)
        neff = None if entry is None else self.read_output(entry, MAIN_OUTPUT)
        return None if entry is None or neff is None else Fetched(entry, neff)

    def entry(self, kind: Kind, key: str) -> Entry | None:
        """See `client.transports.base.Transport.entry`. One that nobody can read counts as absent."""
        return self._at(kind, key).entry()

    def read_output(self, entry: Entry, name: str) -> bytes | None:
        """See `client.transports.base.Transport.read_output`."""
        output = entry.output(name)
        if output is None:
            return None
        wanted.check_room(entry, output)
        files = self._at(entry.kind, entry.key)
        plain, found = files.output(output)
        if plain is None and files.entry() is not None:
            raise Damaged(entry, output.sha256, found)
        return plain  # None: it was set aside, entry first, since the entry was read

    def publish(self, entry: Entry, outputs: Mapping[str, bytes], lease: Granted | None) -> Published:
        """See `client.transports.base.Transport.publish`."""
        publishing.check_entry(entry, outputs, self._project)
        for output in entry.outputs:
            if hashlib.sha256(outputs[output.name]).hexdigest() != output.sha256:
                raise publishing.refused(f"{output.name} does not hash to {output.sha256}", "wrong_digest")
        files = self._at(entry.kind, entry.key)
        files.make()
        stored = files.entry() if lease is None else None  # who took the lease has found out what stands there
        if stored is not None:
            self.is_whole(stored)
        published = files.publish(entry, outputs)
        with suppress(TransportError):  # the entry is there: what is left to do matters to no reader
            held = self._lease(files)
            if lease is not None:
                _end(held, lease)
            held.tidy()
            files.remove_leftovers()
        return published

    def acquire(
        self,
        kind: Kind,
        key: str,
        holder: Holder,
        *,
        wait_seconds: float = 0,
        retry_failed: bool = False,  # noqa: ARG002 - of the protocol; only those who waited are told of a failure here
        seen_generation: int | None = None,
        may_publish: bool = True,
    ) -> LeaseAnswer:
        """See `client.transports.base.Transport.acquire`.

        Raises `client.errors.Refused` called ``no_create_only`` where there can be no lease: the caller compiles at
        once.
        """
        files = self._at(kind, key)
        may_write = may_publish and _may_write(files)
        lease = self._lease(files)
        answer = direct_lease.acquire(
            lease,
            files.now if may_write else None,
            files.ready,
            holder,
            self._waiting,
            wait_seconds=wait_seconds,
            seen_generation=seen_generation,
        )
        if isinstance(answer, Granted):
            try:
                files.clear()
            except TransportError:
                _end(lease, answer)
                raise
        return answer

    def renew(self, kind: Kind, key: str, lease: Granted) -> None:
        """See `client.transports.base.Transport.renew`."""
        self._lease(self._at(kind, key)).renew(lease)

    def release(self, kind: Kind, key: str, lease: Granted, failure: Failure | None = None) -> None:
        """See `client.transports.base.Transport.release`."""
        _end(self._lease(self._at(kind, key)), lease, failure)

    def suspect(self, kind: Kind, key: str, sha256: str) -> Verdict:
        """See `client.transports.base.Transport.suspect`.

        A damaged output and its entry are moved to ``bad-<random>/`` beside them, under the direct lease. Raises
        `client.errors.Refused` called ``permission`` where we may not do that.
        """
        files = self._at(kind, key)
        entry = files.entry()
        if entry is None:
            return "absent"
        output = next((output for output in entry.outputs if output.sha256 == sha256), None)
        if output is None:
            raise publishing.refused(f"no output of {key} has the digest {sha256}")
        if files.is_sound(output):
            return "sound"
        try:
            files.make()
        except Denied as error:
            # Not Denied: one damaged entry is no reason to stop reading the sound ones.
            raise Refused(
                f"{key} is damaged, and we may not set it aside: {error}", status=0, name="permission"
            ) from error
        lease = self._lease(files)
        answer = direct_lease.acquire(
            lease,
            files.now,
            lambda: None if files.entry() == entry else Ready(entry),
            Holder(socket.gethostname(), os.getpid()),
            self._waiting,
            wait_seconds=_REPAIR_WAIT_SECONDS,
        )
        if isinstance(answer, Wait):
            raise Unreachable(f"{key} is damaged and cannot be set aside now: {answer.holder} holds its lease")
        if isinstance(answer, Granted):  # otherwise another process has set it aside while we waited
            try:
                if files.is_sound(output):
                    return "sound"
                files.set_aside(ENTRY_FILE, output_file(output.sha256, output.encoding))
            finally:
                _end(lease, answer)
        return "quarantined"

    def is_whole(self, entry: Entry) -> bool:
        """See `client.transports.base.Transport.is_whole`."""
        files = self._at(entry.kind, entry.key)
        for output in entry.outputs:
            if not files.is_stored(output) and self.suspect(entry.kind, entry.key, output.sha256) != "sound":
                return False
        return True

    def revoked(self) -> frozenset[Withdrawn]:
        """Return nothing: only a server can withdraw entries."""
        return frozenset()

    def _lease(self, files: DirectEntry) -> direct_lease.DirectLease:
        return direct_lease.DirectLease(files, self._stillness, ttl_seconds=self._lease_seconds)


def _may_write(files: DirectEntry) -> bool:
    try:
        files.make()
    except Denied:
        return False
    return True


def _end(lease: direct_lease.DirectLease, granted: Granted, failure: Failure | None = None) -> None:
    """Give a lease back, looking again if our own heartbeat came between our look and our write."""
    for _ in range(_ENDINGS):
        with suppress(LeaseLost):
            lease.end(granted, failure)
            return
