"""One compile per key in the cluster: the client's side of the lease, as a decision about one program.

The order is: look, ask for the lease, wait for its holder, look again. Leases save work and keep nothing correct: the
store takes the first entry of a key and no other, so at every doubt the answer is "compile".
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from client.errors import Failure
from client.lease import Compile, Conversation, Decision, Found, HeldLease
from client.remote import UNAVAILABLE, Remote, Unavailable
from client.transports.base import Damaged, Fetched, TooLarge, TooSlow, Unwanted
from client.transports.wanted import wanting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client.names import Kind
    from client.settings import Settings
    from client.signing.check import SignatureCheck
    from client.statistics import Statistics
    from client.transports.base import Published, Withdrawn
    from client.warnings import Notices
    from client.wire import Entry, Holder

MAX_REPORTED = 8192
"""Keys that a report names at most: the server keeps what is in use, and its bodies are bounded."""
READY_ANSWERS = 2
"""How often we believe that an entry is ready which then cannot be fetched."""


@dataclass(frozen=True, slots=True)
class Sound:
    """We received wrong bytes, or none in time, but those that are stored are right: the way to us is at fault."""


Look: TypeAlias = Fetched | Sound | Unavailable | None


class Cluster:
    """What the processes of a cluster agree on through one shared cache. Safe to use from several threads."""

    def __init__(
        self,
        remote: Remote,
        settings: Settings,
        holder: Holder,
        notices: Notices,
        *,
        check: SignatureCheck | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._check = check
        self._remote = remote
        self._settings = settings
        self._holder = holder
        self._notices = notices
        self._clock = clock
        self._sleep = sleep

    @property
    def address(self) -> str:
        """Where the shared cache is, as shown to people."""
        return self._remote.transport.address

    def revoked(self) -> frozenset[Withdrawn]:
        """Return (kind, key) of entries withdrawn as poisoned; nothing if that cannot be found out."""
        return self._remote.revoked()

    def look(self, kind: Kind, key: str, *, can_compile: bool = False) -> Look:
        """Fetch the program; a damaged one is reported to the store, which sets it aside if it is damaged there.

        ``can_compile`` gives up a fetch that takes longer than the compile did.
        """
        try:
            with wanting(self._wants):
                fetched = self._remote.fetch(kind, key, can_compile=can_compile)
        except Unwanted as error:
            self._admits(error.entry)  # says why not
            return Sound()
        except (TooLarge, TooSlow) as error:
            self._notices.warn(f"remote {type(error).__name__}", f"{error}; compiling it here")
            return Sound()
        except Damaged as error:
            self._notices.warn("damaged remote", f"{self._remote.transport.address}: {error}; compiling it again")
            if self._settings.on_error == "fail":
                raise
            verdict = self._remote.suspect(kind, key, error.sha256)
            return Sound() if verdict in ("sound", UNAVAILABLE) else None
        if isinstance(fetched, Fetched):
            found = fetched.entry
            if (found.project, found.kind, found.key) != (self._settings.project, kind, key):
                # good bytes of another program: running them would be worse than any damage
                self._remote.distrust(kind, f"asked for {kind}/{key}, got {found.project}/{found.kind}/{found.key}")
                return Sound()
            if not self._admits(found):
                # it holds its key, so that what we compile cannot be published
                return Sound()
        return fetched

    def _wants(self, entry: Entry) -> bool:
        return self._check is None or self._check.wants(entry)

    def _admits(self, entry: Entry) -> bool:
        return self._check is None or self._check.admits(entry, self.address)

    def decide(self, kind: Kind, key: str, *, retry_failed: bool = False) -> Decision:
        """Fetch the program, or wait for it, or get the right to compile it.

        Raises `CompileError` for a diagnosis that another process met with this very program.
        """
        look = self.look(kind, key, can_compile=True)
        if look is not None:
            return self._settle(look)
        talk = Conversation(
            self._remote,
            self._settings,
            self._holder,
            self._notices,
            kind=kind,
            key=key,
            retry_failed=retry_failed,
            clock=self._clock,
            sleep=self._sleep,
        )
        for _ in range(READY_ANSWERS):
            decision = talk.run()
            if decision is not None:
                return decision
            look = self.look(kind, key, can_compile=True)
            if look is not None:
                return self._settle(look, waited=talk.waited)
        return Compile(publish=self._settings.mode == "rw", waited=talk.waited)

    def publish(
        self, entry: Entry, outputs: Mapping[str, bytes], decision: Compile, *, background: bool = False
    ) -> Published | None:
        """Publish what was compiled, which ends the lease; None if that failed.

        In the ``background`` it may take as long as an upload may take under a lease, which is kept alive meanwhile.
        """
        held = decision.lease
        lease = held.granted if held is not None and held.alive else None
        published = self._remote.publish(entry, outputs, lease, background=background)
        if published is UNAVAILABLE:
            if held is not None:
                self.give_back(entry.kind, entry.key, held, Failure("transient", "the upload failed"))
            return None
        if held is not None:
            held.heartbeat.stop()
        return published

    def instead(self, entry: Entry, published: Published | None) -> Fetched | None:
        """Return the program that stands in place of ours if it is another build, and can be had."""
        ours, theirs = entry.output(), None if published is None else published.entry.output()
        if ours is None or theirs is None or ours.sha256 == theirs.sha256:
            return None
        look = self.look(entry.kind, entry.key, can_compile=True)
        return look if isinstance(look, Fetched) else None

    @property
    def budget(self) -> float:
        """Seconds that the job may still lose to the shared cache."""
        return self._remote.budget

    def give_back(self, kind: Kind, key: str, lease: HeldLease, failure: Failure | None) -> None:
        """Release a lease, with the failure that the others should learn of."""
        lease.heartbeat.stop()
        self._remote.release(kind, key, lease.granted, failure)

    def report(self, statistics: Statistics) -> None:
        """Tell the shared cache, if it is a server, what this process had from which tier."""
        summary = statistics.to_json()
        del summary["keys"][MAX_REPORTED:]
        self._remote.report(summary)

    def forget(self) -> None:
        """In a forked child: what runs beside the parent is the parent's."""
        if self._remote.renewer is not None:
            self._remote.renewer.forget()

    def close(self) -> None:
        """Drop connections."""
        self._remote.close()

    def _settle(self, look: Fetched | Sound | Unavailable, *, waited: bool = False) -> Decision:
        if isinstance(look, Fetched):
            return Found(look, waited)
        may_publish = self._settings.mode == "rw" and not isinstance(look, Sound)
        return Compile(publish=may_publish, waited=waited)
