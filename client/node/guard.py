"""The node tier as a job may use it: whatever the file system does, it costs a hit and never the job."""

from __future__ import annotations

import errno
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from client.errors import ConfigurationError
from client.node.eviction import Evictor
from client.node.lock import KeyLocks, Turn
from client.node.outage import Outage
from client.node.permissions import UntrustedError
from client.node.tier import DamagedEntryError, NodeTier, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from client.errors import Failure
    from client.key import CompilerIdentity
    from client.names import Kind
    from client.node.files import Files
    from client.settings import Settings
    from client.signing.check import SignatureCheck
    from client.warnings import Notices
    from client.wire import Entry, Holder

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class GuardedTier:
    """`NodeTier`, `KeyLocks` and `Evictor` of one project, none of which can fail any more.

    A tier that others can write is refused: one warning, and from then on there is none (`ConfigurationError` where
    ``NEURON_CACHE_ON_ERROR=fail``). ``met`` is called with the kind of the program for each fault.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        notices: Notices,
        *,
        met: Callable[[Kind], None],
        files: Files | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
        check: SignatureCheck | None = None,
    ) -> None:
        self._tier = NodeTier(root, settings.project, shared=settings.node_shared, files=files, now=now, check=check)
        self._locks = KeyLocks(self._tier.tree, settings.project, clock=clock, sleep=sleep, now=now)
        self._evictor = Evictor(self._tier.tree, settings.node_max_bytes, max_age=settings.node_max_age, now=now)
        self._clock = clock
        self._sleep = sleep
        self._now = now
        self._root = root
        self._settings = settings
        self._notices = notices
        self._met = met
        self._refused = False
        self._made = False
        self._writable = True

    def get(self, kind: Kind, key: str) -> Stored | None:
        """Return the verified entry, or None."""
        if self._refused:
            return None
        try:
            return self._tier.get(kind, key)
        except DamagedEntryError as error:
            self._met(kind)
            self._notices.warn("damaged disk", f"a damaged entry in {self._root} was set aside: {error}")
        except UntrustedError as error:
            self._refuse(kind, error)
        except OSError as error:
            self._fault(kind, error, "read")
        return None

    def put(self, entry: Entry, neff: bytes) -> Stored | None:
        """Store an entry; return the one that stands there instead, if another process was first."""
        if self._refused or not self._writable:
            return None
        for last in (False, True):
            try:
                self._make_root()
                if not self._tier.put(entry, neff):
                    return self.get(entry.kind, entry.key)
                self._evictor.written(len(neff))
            except UntrustedError as error:
                self._refuse(entry.kind, error)
            except OSError as error:
                if error.errno == errno.ENOENT and not last:
                    self._made = False  # somebody removed the tier under us
                    continue
                if error.errno in _FULL and not last and self._evictor.make_room(len(neff)):
                    continue
                self._fault(entry.kind, error, "write")
            break
        return None

    @contextmanager
    def turn(
        self, kind: Kind, key: str, holder: Holder, *, waiting: Callable[[Holder | None, float], None]
    ) -> Iterator[Turn]:
        """Wait for our turn to work on a key on this node; without a usable tier it is always our turn."""
        if self._refused or not self._writable:
            yield Turn(None)
            return
        try:
            self._make_root()
        except OSError as error:
            self._fault(kind, error, "write")
        with self._locks.hold(
            kind,
            key,
            holder,
            limit=self._settings.wait_limit,
            arrived=lambda: self.get(kind, key) is not None,
            waiting=waiting,
        ) as turn:
            yield turn

    @contextmanager
    def admission(
        self, kind: Kind, compiler: CompilerIdentity, module_bytes: int, *, alone: bool = False
    ) -> Iterator[Callable[[int | None], None]]:
        """Wait until this process may start one more compiler on this node, by number and by memory.

        Gives a function that takes the bytes which the compile took in the end, from which the next ones learn.
        """
        if self._refused or not self._writable:
            yield lambda _: None
            return
        from client.admission import estimate, memory, queue  # noqa: PLC0415 - what is found compiled needs none of it

        settings, estimator = self._settings, estimate.Estimator(self._tier.tree)
        limit = memory.memory_limit()
        budget = settings.compile_memory or (None if limit is None else int(limit * memory.SHARE))
        line = queue.Queue(
            self._tier.tree, slots=settings.compile_slots, budget=budget, clock=self._clock, sleep=self._sleep
        )

        def waiting(seconds: float) -> None:
            self._notices.waiting(
                f"waiting for other compilers on this node to end (NEURON_CACHE_COMPILE_SLOTS,"
                f" NEURON_CACHE_COMPILE_MEMORY); {seconds:.0f} s so far"
            )

        def learn(peak: int | None) -> None:
            if peak:
                estimator.learn(compiler, module_bytes, peak)

        size = estimator.estimate(compiler, module_bytes)
        with line.enter(size, limit=settings.wait_limit, waiting=waiting, alone=alone) as admitted:
            if not admitted and (settings.compile_slots or settings.compile_memory):
                self._notices.warn(
                    "admission",
                    f"compilers on this node are not counted: no locks in {self._root}, or a wait beyond"
                    " NEURON_CACHE_WAIT_LIMIT",
                )
                self._met(kind)
            yield learn

    def outage(self, address: str) -> Outage:
        """Return what the processes of this node tell each other of the shared cache at ``address``."""
        return Outage(self._tier.tree, address, clock=self._clock, now=self._now)

    def leave_failure(self, kind: Kind, key: str, failure: Failure, host: str) -> None:
        """Leave a failed compile to those who wait behind us."""
        if self._refused or not self._writable:
            return
        try:
            self._locks.leave_failure(kind, key, failure, host)
        except UntrustedError as error:
            self._refuse(kind, error)
        except OSError as error:
            self._fault(kind, error, "write")

    def forget_failure(self, kind: Kind, key: str) -> None:
        """Forget a failure that the last compile has overtaken."""
        if not self._refused and self._writable:
            self._locks.forget_failure(kind, key)

    def keep_log(self, kind: Kind, key: str, text: str) -> str | None:
        """Keep what a compiler said beside the lock of its key; return the file's path, None if there is none."""
        if self._refused or not self._writable:
            return None
        try:
            return self._locks.keep_log(kind, key, text)
        except UntrustedError as error:
            self._refuse(kind, error)
        except OSError as error:
            self._fault(kind, error, "write")
        return None

    def remove(self, kind: Kind, key: str) -> None:
        """Drop an entry that must not be used any more."""
        try:
            self._tier.remove(kind, key)
        except UntrustedError as error:
            self._refuse(kind, error)
        except OSError as error:
            self._fault(kind, error, "write")

    def _make_root(self) -> None:
        if not self._made:
            self._tier.tree.make_root()
            self._made = True

    def _refuse(self, kind: Kind, error: UntrustedError) -> None:
        self._refused = True
        self._met(kind)
        message = f"no node tier: {error}"
        if self._settings.on_error == "fail":
            raise ConfigurationError(message) from error
        self._notices.warn("node tier refused", message)

    def _fault(self, kind: Kind, error: OSError, verb: str) -> None:
        self._met(kind)
        if verb == "write" and error.errno in _READ_ONLY:
            self._writable = False
        self._notices.warn(
            f"node tier {verb} {error.errno}", f"cannot {verb} in the node tier {self._root}: {error}; going on without"
        )
