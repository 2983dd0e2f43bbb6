"""A shared cache that is a folder: a path or ``file://``, on one machine or on a network file system.

There are no tenants and no trust levels here: whoever may write to the folder may write entries. Reads check every
byte against the entry's digests; writes are create-only (`client.transports.shared_files`); the right to compile is a
direct lease (`client.transports.direct_lease`). A folder that may only be read serves hits and grants nothing.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from client.errors import Denied, TransportError, Unreachable
from client.layout import ENTRY_FILE, output_file
from client.names import MAIN_OUTPUT, check_project
from client.transports import direct_lease, publishing
from client.transports.base import Damaged, Fetched, Published
from client.transports.entry_folder import EntryFolder
from client.transports.shared_files import SharedFolder
from client.wire import Entry, Granted, Holder, Ready, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from client.errors import Failure
    from client.names import Kind
    from client.transports.base import Verdict, Withdrawn
    from client.wire import LeaseAnswer

_REPAIR_WAIT_SECONDS = 10.0


class DirectoryTransport:
    """`client.transports.base.Transport` over the folder ``root``; clock, sleep and randomness may be passed in."""

    def __init__(
        self,
        root: Path,
        project: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._root = root
        self._project = check_project(project)
        self._files = SharedFolder(root)
        self._waiting = direct_lease.Waiting(monotonic, sleep, uniform)
        self._stillness = direct_lease.Stillness(monotonic)

    @property
    def address(self) -> str:
        """The folder, as a URL."""
        return self._root.as_uri()

    def fetch(self, kind: Kind, key: str) -> Fetched | None:
        """See `client.transports.base.Transport.fetch`."""
        entry = self.entry(kind, key)
        neff = None if entry is None else self.read_output(entry, MAIN_OUTPUT)
        return None if entry is None or neff is None else Fetched(entry, neff)

    def entry(self, kind: Kind, key: str) -> Entry | None:
        """See `client.transports.base.Transport.entry`. One that nobody can read counts as absent."""
        return self._folder(kind, key).entry()

    def read_output(self, entry: Entry, name: str) -> bytes | None:
        """See `client.transports.base.Transport.read_output`."""
        output = entry.output(name)
        if output is None:
            return None
        folder = self._folder(entry.kind, entry.key)
        plain, found = folder.output(output)
        if plain is None and folder.entry() is not None:
            raise Damaged(entry, output.sha256, found)
        return plain  # None: it was set aside, entry first, since the entry was read

    def publish(self, entry: Entry, outputs: Mapping[str, bytes], lease: Granted | None) -> Published:
        """See `client.transports.base.Transport.publish`."""
        publishing.check_entry(entry, outputs, self._project)
        for output in entry.outputs:
            if hashlib.sha256(outputs[output.name]).hexdigest() != output.sha256:
                raise publishing.refused(f"{output.name} does not hash to {output.sha256}", "wrong_digest")
        folder = self._folder(entry.kind, entry.key)
        folder.make()
        published = folder.publish(entry, outputs)
        with suppress(TransportError):  # the entry is there: what is left to do matters to no reader
            held = self._lease(folder)
            if lease is not None:
                held.end(lease)
            held.tidy()
            folder.remove_leftovers()
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
        folder = self._folder(kind, key)
        may_write = may_publish and _may_write(folder)
        answer = direct_lease.acquire(
            self._lease(folder),
            folder.now if may_write else None,
            folder.ready,
            holder,
            self._waiting,
            wait_seconds=wait_seconds,
            seen_generation=seen_generation,
        )
        if isinstance(answer, Granted):
            try:
                folder.clear()
            except TransportError:
                self._lease(folder).end(answer)
                raise
        return answer

    def renew(self, kind: Kind, key: str, lease: Granted) -> None:
        """See `client.transports.base.Transport.renew`."""
        self._lease(self._folder(kind, key)).renew(lease)

    def release(self, kind: Kind, key: str, lease: Granted, failure: Failure | None = None) -> None:
        """See `client.transports.base.Transport.release`."""
        self._lease(self._folder(kind, key)).end(lease, failure)

    def suspect(self, kind: Kind, key: str, sha256: str) -> Verdict:
        """See `client.transports.base.Transport.suspect`.

        A damaged output and its entry are moved to ``bad-<random>/`` beside them, under the direct lease.
        """
        folder = self._folder(kind, key)
        entry = folder.entry()
        if entry is None:
            return "absent"
        output = next((output for output in entry.outputs if output.sha256 == sha256), None)
        if output is None:
            raise publishing.refused(f"no output of {key} has the digest {sha256}")
        if folder.is_sound(output):
            return "sound"
        folder.make()
        lease = self._lease(folder)
        answer = direct_lease.acquire(
            lease,
            folder.now,
            lambda: None if folder.entry() == entry else Ready(entry),
            Holder(socket.gethostname(), os.getpid()),
            self._waiting,
            wait_seconds=_REPAIR_WAIT_SECONDS,
        )
        if isinstance(answer, Wait):
            raise Unreachable(f"{key} is damaged and cannot be set aside now: {answer.holder} holds its lease")
        if isinstance(answer, Granted):  # otherwise another process has set it aside while we waited
            try:
                if folder.is_sound(output):
                    return "sound"
                folder.set_aside(ENTRY_FILE, output_file(output.sha256, output.encoding))
            finally:
                lease.end(answer)
        return "quarantined"

    def revoked(self) -> frozenset[Withdrawn]:
        """Return nothing: only a server can withdraw entries."""
        return frozenset()

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def _folder(self, kind: Kind, key: str) -> EntryFolder:
        return EntryFolder(self._files, self._project, kind, key, self._waiting)

    def _lease(self, folder: EntryFolder) -> direct_lease.DirectLease:
        return direct_lease.DirectLease(folder, self._stillness)


def _may_write(folder: EntryFolder) -> bool:
    try:
        folder.make()
    except Denied:
        return False
    return True
