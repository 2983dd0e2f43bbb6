"""The node tier as a job may use it: whatever the file system does, it costs a hit and never the job."""

from __future__ import annotations

import errno
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from client.errors import ConfigurationError
from client.node.eviction import Evictor
from client.node.lock import KeyLocks, Turn
from client.node.outage import Outage
from client.node.ownership import NotOursError
from client.node.permissions import UntrustedError
from client.node.place import ADVICE, find_site
from client.node.tier import DamagedEntryError, NodeTier, Stored
from client.stalls import StalledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from client.errors import Failure
    from client.key import CompilerIdentity
    from client.names import Kind
    from client.node.beat import Watch
    from client.node.files import Files
    from client.settings import Settings
    from client.signing.check import SignatureCheck
    from client.warnings import Notices
    from client.wire import Entry, Holder

T = TypeVar("T")
Doing: TypeAlias = Literal["read", "write", "lock"]
"""What a call is for. Locks, and what lies beside them, only save work: a job goes on without, and keeps its hits."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class GuardedTier:
    """`NodeTier`, `KeyLocks` and `Evictor` of one project, none of which can fail any more.

    Every method goes through `_attempt` or `_entered`, where whatever is raised becomes one warning for each cause. A
    tier that others can write, or that is not ours, is refused: from then on there is none. Only where
    ``NEURON_CACHE_ON_ERROR=fail`` that is a `ConfigurationError`, and never in place of what a compiler said. ``met``
    is called with the kind of the program for each fault.
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
        """Raise `ConfigurationError` for a tier that cannot be reached, where ``NEURON_CACHE_ON_ERROR=fail``."""
        site = find_site(root, settings.node_fallback, files)
        shared = settings.node_shared and site.root == root
        self._tier = NodeTier(site.root, settings.project, shared=shared, files=site.files, now=now, check=check)
        self._locks = KeyLocks(self._tier.tree, settings.project, clock=clock, sleep=sleep, now=now)
        self._evictor = Evictor(self._tier.tree, settings.node_max_bytes, max_age=settings.node_max_age, now=now)
        self._clock = clock
        self._sleep = sleep
        self._now = now
        self._root = site.root
        self._settings = settings
        self._notices = notices
        self._met = met
        self._watches: dict[str, Watch] = {}
        self._refused = not site.usable
        self._writable = True
        if site.problem:
            if settings.on_error == "fail":
                raise ConfigurationError(site.problem)
            notices.warn("node tier out of reach", site.problem)

    def get(self, kind: Kind, key: str) -> Stored | None:
        """Return the verified entry, or None."""
        return None if self._refused else self._attempt("read", kind, self._tier.get, kind, key)

    def put(self, entry: Entry, neff: bytes) -> Stored | None:
        """Store an entry; return the one that stands there instead, if another process was first."""
        return self._attempt("write", entry.kind, self._put, entry, neff) if self._usable else None

    def _put(self, entry: Entry, neff: bytes) -> Stored | None:
        tree = self._tier.tree
        for last in (False, True):
            try:
                tree.claim()
                if not self._tier.put(entry, neff):
                    return self.get(entry.kind, entry.key)
                break
            except OSError as error:
                if last or isinstance(error, StalledError):
                    raise
                if error.errno == errno.ENOENT:
                    tree.forget()  # somebody removed the tier under us
                elif error.errno not in _FULL or not self._evictor.make_room(len(neff)):
                    raise
        self._evictor.written(len(neff))
        return None

    @contextmanager
    def turn(
        self, kind: Kind, key: str, holder: Holder, *, waiting: Callable[[Holder | None, float], None]
    ) -> Iterator[Turn]:
        """Wait for our turn to work on a key on this node; without a usable tier it is always our turn."""
        if self._usable:
            self._attempt("write", kind, self._tier.tree.claim)
        if not self._usable:
            yield Turn()
            return
        hold = self._locks.hold(
            kind,
            key,
            holder,
            limit=self._settings.wait_limit,
            arrived=lambda: self.get(kind, key) is not None,
            waiting=waiting,
        )
        with self._entered(kind, hold, Turn()) as turn:
            if turn.refused is not None:
                self._judge("lock", kind, turn.refused, may_raise=True)
            yield turn

    @contextmanager
    def admission(
        self, kind: Kind, compiler: CompilerIdentity, module_bytes: int, *, alone: bool = False
    ) -> Iterator[Callable[[int | None], None]]:
        """Wait until this process may start one more compiler on this node, by number and by memory.

        Gives a function that takes the bytes which the compile took in the end, from which the next ones learn.
        """
        if not self._usable:
            yield _learn_nothing
            return
        with self._entered(kind, self._admitted(kind, compiler, module_bytes, alone=alone), _learn_nothing) as learn:
            yield learn

    @contextmanager
    def _admitted(
        self, kind: Kind, compiler: CompilerIdentity, module_bytes: int, *, alone: bool
    ) -> Iterator[Callable[[int | None], None]]:
        from client.admission import estimate, memory, queue  # noqa: PLC0415 - what is found compiled needs none of it

        settings, estimator = self._settings, estimate.Estimator(self._tier.tree)
        limit = memory.memory_limit()
        budget = settings.compile_memory or (None if limit is None else int(limit * memory.SHARE))
        line = queue.Queue(
            self._tier.tree,
            slots=settings.compile_slots,
            budget=budget,
            clock=self._clock,
            sleep=self._sleep,
            watches=self._watches,
        )

        def waiting(seconds: float) -> None:
            self._notices.waiting(
                f"waiting for other compilers on this node to end (NEURON_CACHE_COMPILE_SLOTS,"
                f" NEURON_CACHE_COMPILE_MEMORY); {seconds:.0f} s so far"
            )

        def learn(peak: int | None) -> None:
            if peak:
                self._attempt("lock", kind, estimator.learn, compiler, module_bytes, peak)

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
        if self._usable:
            self._attempt("lock", kind, self._locks.leave_failure, kind, key, failure, host)

    def forget_failure(self, kind: Kind, key: str) -> None:
        """Forget a failure that the last compile has overtaken."""
        if self._usable:
            self._attempt("lock", kind, self._locks.forget_failure, kind, key)

    def keep_log(self, kind: Kind, key: str, text: str) -> str | None:
        """Keep what a compiler said beside the lock of its key; return the file's path, None if there is none."""
        return self._attempt("lock", kind, self._locks.keep_log, kind, key, text) if self._usable else None

    def remove(self, kind: Kind, key: str) -> None:
        """Drop an entry that must not be used any more."""
        if not self._refused:
            self._attempt("write", kind, self._tier.remove, kind, key)

    @property
    def _usable(self) -> bool:
        return self._writable and not self._refused

    def _attempt(self, doing: Doing, kind: Kind, work: Callable[..., T], *arguments: object) -> T | None:
        """Return ``work(*arguments)``, or None if it fails."""
        try:
            return work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the job
            self._judge(doing, kind, error, may_raise=doing != "lock")
        return None

    @contextmanager
    def _entered(self, kind: Kind, opening: AbstractContextManager[T], otherwise: T) -> Iterator[T]:
        """Give what ``opening`` gives, or ``otherwise``; what is raised inside is the caller's, and passes through."""
        with ExitStack() as stack:
            given = self._attempt("lock", kind, stack.enter_context, opening)
            stack.callback(self._attempt, "lock", kind, stack.pop_all().close)
            yield otherwise if given is None else given

    def _judge(self, doing: Doing, kind: Kind, error: Exception, *, may_raise: bool) -> None:
        """Draw the consequences of a fault, and warn once of its cause."""
        where = f"the node tier {self._root}"
        match error:
            case ConfigurationError():
                raise error
            case DamagedEntryError():
                cause, message = "damaged disk", f"a damaged entry in {self._root} was set aside: {error}"
            case UntrustedError() if doing == "lock" and not isinstance(error, NotOursError):
                cause = "no locks"
                message = f"no locks in {where}, so that processes of this node may compile one program twice: {error}"
            case UntrustedError():
                self._refused = True
                cause, message = "node tier refused", f"no node tier: {error}"
            case StalledError():
                cause, message = (
                    "node tier stalled",
                    f"{where} cannot be used: {error.strerror}; going on without: {ADVICE}",
                )
            case OSError():
                if doing == "write" and error.errno in _READ_ONLY:
                    self._writable = False
                verb = "read" if doing == "read" else "write"
                cause, message = (
                    f"node tier {verb} {error.errno}",
                    f"cannot {verb} in {where}: {error}; going on without",
                )
            case _:
                cause, message = f"node tier {type(error).__name__}", f"{where} broke: {error!r}; going on without"
        self._met(kind)
        if may_raise and self._settings.on_error == "fail" and isinstance(error, UntrustedError):
            raise ConfigurationError(message) from error
        self._notices.warn(cause, message)


def _learn_nothing(_peak: int | None) -> None:
    """Take what a compile took where nothing is remembered."""
