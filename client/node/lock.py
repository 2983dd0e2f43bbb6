"""One process per key on a node: a kernel lock, and the failure that its owner leaves for those who waited behind it.

::

    <root>/v1/<project>/<kind>/locks/<key>.lock       the kernel's lock is on this file; its content says who holds it
    <root>/v1/<project>/<kind>/locks/<key>.1.lock     the same, for who works in place of an owner that stands still
    <root>/v1/<project>/<kind>/locks/<key>.failed     how the last compile ended, if badly
    <root>/v1/<project>/<kind>/locks/<key>.log        what a compiler said that ended well and left nothing; for people

The kernel drops the lock when its owner dies, however it dies; a file that is left over locks nothing. The owner's
compiler does not inherit the lock, and a forked child lets go of it at once. An owner that lives and stands still
(`client.node.beat`) is succeeded: by one of those who wait, which has the next lock, so that still one process of a
node works on a key. Where locks are not to be had (read-only
tier, a file system without them, one where they lie) work goes on without: locks save work, they keep nothing correct.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.errors import Failure
from client.node.beat import Held, Watch
from client.node.files import same_file
from client.node.ownership import LOCKS
from client.node.permissions import UntrustedError
from client.node.tree import LAYOUT, unique_name
from client.wire import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.names import Kind
    from client.node.tree import Tree

FIRST_POLL, LONGEST_POLL = 0.002, 0.25
TELL_AFTER = 5.0
"""Seconds of waiting after which a process says whom it waits for."""
LOOK_EVERY = 1.0
MOST_REPLACED = 20
"""How often in a row a lock may turn out to be on a file that is no longer there, before we do not believe it."""
DIAGNOSIS_LIFE = 300.0
FAILURE_LIFE = 600.0
_MAX_FILE = 1 << 20
_BEATS = "beats"

MOST_HEIRS = 3
"""How many owners in a row may stand still before those behind them go on without a lock."""
held_descriptors = Held()
"""Descriptors whose locks this process holds."""

os.register_at_fork(after_in_child=held_descriptors.let_go)


@dataclass(frozen=True, slots=True)
class LeftFailure:
    """A failure beside the lock: ``identity`` differs for each one, ``age`` is in seconds."""

    failure: Failure
    host: str
    identity: str
    age: float


class Turn:
    """What `KeyLocks.hold` gives: whether the lock is ours, and what happened while we waited for it.

    ``seconds`` is 0.0 if nobody held the lock. ``refused`` says why there is no lock if that is somebody's to mend.
    ``failure`` is one that was left while we waited, or a diagnosis that
    still lives.
    """

    __slots__ = ("descriptor", "failure", "heir", "locked", "name", "pid", "refused", "seconds", "watch")

    def __init__(self, name: str = "", watch: Watch | None = None) -> None:
        self.descriptor: int | None = None
        self.name = name
        self.watch = watch
        self.heir: Turn | None = None
        self.refused: UntrustedError | None = None
        self.pid = os.getpid()
        self.locked = False
        self.seconds = 0.0
        self.failure: LeftFailure | None = None

    def chain(self) -> Iterator[Turn]:
        """Give this turn, and those behind the ones whose owners stand still."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.heir

    def takes(self, left: LeftFailure | None, before: LeftFailure | None) -> bool:
        """Return whether a failure that lies there now, and ``before`` did when we came, concerns us."""
        if left is None:
            return False
        left_meanwhile = before is None or before.identity != left.identity
        lives = left.failure.failure_class == "diagnosis" and left.age <= DIAGNOSIS_LIFE
        return lives or (self.seconds > 0 and left_meanwhile)


class KeyLocks:
    """The locks of one project in a node tier. Safe to use from several threads."""

    def __init__(
        self,
        tree: Tree,
        project: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._tree = tree
        self._files = tree.files
        self._project = project
        self._clock = clock
        self._sleep = sleep
        self._now = now

    @contextmanager
    def hold(
        self,
        kind: Kind,
        key: str,
        holder: Holder,
        *,
        limit: float,
        arrived: Callable[[], bool],
        waiting: Callable[[Holder | None, float], None],
    ) -> Iterator[Turn]:
        """Take the lock of a key, wait for it up to ``limit`` seconds, and give it back at the end.

        Waiting also ends when ``arrived`` says that the entry is there (asked once a second), or when locks turn out
        not to work. ``waiting`` is called once, with the owner if that is known and the seconds waited so far.
        """
        turn = self._begin(kind, f"{key}.lock")
        try:
            before = self.failure(kind, key)
            self._acquire(turn, kind, limit=limit, arrived=arrived, waiting=waiting)
            after = self.failure(kind, key)
            turn.failure = after if turn.takes(after, before) else None
            for each in turn.chain():
                if each.locked:
                    self._describe(each, holder)
            yield turn
        finally:
            for each in turn.chain():
                self._give_back(each, kind)

    def failure(self, kind: Kind, key: str) -> LeftFailure | None:
        """Return the failure that lies beside the lock and is not too old to matter, or None."""
        try:
            with self._tree.directory(self._project, kind, LOCKS) as (directory, trust):
                descriptor = self._files.open_file(f"{key}.failed", directory)
                try:
                    trust.check(self._files.status(descriptor), f"{key}.failed")
                    raw = json.loads(self._files.read(descriptor, _MAX_FILE))
                finally:
                    self._files.close(descriptor)
            age = self._now() - float(raw["time"])
            left = LeftFailure(Failure.from_json(raw["failure"]), str(raw["host"]), str(raw["identity"]), age)
        except (OSError, UntrustedError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        return left if 0 <= age <= FAILURE_LIFE else None

    def leave_failure(self, kind: Kind, key: str, failure: Failure, host: str) -> None:
        """Leave a failure for those who wait behind the lock; raises `OSError` and `UntrustedError`."""
        value = {"failure": failure.to_json(), "host": host, "identity": unique_name(""), "time": self._now()}
        with self._tree.directory(self._project, kind, LOCKS, make=True) as (directory, trust):
            self._tree.replace_file(f"{key}.failed", directory, trust, json.dumps(value).encode())

    def forget_failure(self, kind: Kind, key: str) -> None:
        """Remove what was left beside the lock; raises `OSError` and `UntrustedError`."""
        with suppress(FileNotFoundError):
            self._tree.claim(make=False)
            with self._tree.directory(self._project, kind, LOCKS) as (directory, _):
                self._files.unlink(f"{key}.failed", directory)

    def keep_log(self, kind: Kind, key: str, text: str) -> str:
        """Keep ``text`` beside the lock and return its path; raises `OSError` and `UntrustedError`."""
        with self._tree.directory(self._project, kind, LOCKS, make=True) as (directory, trust):
            self._tree.replace_file(f"{key}.log", directory, trust, text.encode("utf-8", "replace"))
        return f"{self._tree.root}/{LAYOUT}/{self._project}/{kind}/{LOCKS}/{key}.log"

    def _begin(self, kind: Kind, name: str) -> Turn:
        turn = Turn(name, Watch(self._clock))
        self._open(turn, kind)
        return turn

    def _open(self, turn: Turn, kind: Kind) -> None:
        """Open the lock's file; without one there is no lock."""
        try:
            with self._tree.directory(self._project, kind, LOCKS, make=True) as (directory, trust):
                turn.descriptor = self._tree.open_lock_file(turn.name, directory, trust)
        except UntrustedError as error:
            turn.refused = error
        except OSError:
            return

    def _acquire(
        self,
        turn: Turn,
        kind: Kind,
        *,
        limit: float,
        arrived: Callable[[], bool],
        waiting: Callable[[Holder | None, float], None],
    ) -> None:
        """Poll until the lock is ours, or waiting for it makes no sense any more."""
        start = looked = self._clock()
        told, pause = False, FIRST_POLL
        while not self._try(turn, kind):
            self._sleep(pause)
            pause = min(pause * 1.5, LONGEST_POLL)
            time_now = self._clock()
            turn.seconds = max(time_now - start, FIRST_POLL)
            if turn.seconds >= limit:
                return
            if not told and turn.seconds >= TELL_AFTER:
                told = True
                waiting(self._owner(turn), turn.seconds)
            if time_now - looked >= LOOK_EVERY:
                looked = time_now
                if arrived() or self._succeeds(turn, kind):
                    return

    def _succeeds(self, turn: Turn, kind: Kind) -> bool:
        """Return whether it is on us to work in place of an owner that stands still, or on nobody."""
        chain = list(turn.chain())
        if not self._stands_still(turn):
            for heir in chain[1:]:  # it moves again
                self._give_back(heir, kind)
            turn.heir = None
            return False
        if len(chain) > 1 and self._try(chain[-1], kind):
            return True
        if not self._stands_still(chain[-1]):
            return False
        if len(chain) > MOST_HEIRS:
            return True
        chain[-1].heir = heir = self._begin(kind, f"{turn.name.removesuffix('.lock')}.{len(chain)}.lock")
        return self._try(heir, kind)

    def _stands_still(self, turn: Turn) -> bool:
        """Return whether the owner of a lock that we wait for says that it beats, and has not done so for a while."""
        if turn.descriptor is None or turn.watch is None:
            return False
        try:
            still = turn.watch.stands_still(self._files.status(turn.descriptor))
            return still and bool(json.loads(self._files.read(turn.descriptor, _MAX_FILE)).get(_BEATS))
        except (OSError, ValueError, AttributeError):
            return False  # it has not written its name yet

    def _try(self, turn: Turn, kind: Kind) -> bool:
        """Try once, and return whether trying is over: the lock is ours, or there are no locks here."""
        for _ in range(MOST_REPLACED):
            if turn.descriptor is None:
                break
            try:
                if not self._files.lock(turn.descriptor):
                    return False
                if self._is_current(turn.descriptor, kind, turn.name):
                    turn.locked = True
                    held_descriptors.add(turn.descriptor)
                    return True
            except OSError:
                return True
            # the owner before us removed the file: lock the one that stands there now
            stale, turn.descriptor = turn.descriptor, None
            self._close(stale)
            self._open(turn, kind)
        return True

    def _is_current(self, descriptor: int, kind: Kind, name: str) -> bool:
        try:
            with self._tree.directory(self._project, kind, LOCKS) as (directory, _):
                return same_file(self._files.status(descriptor), self._files.status_of(name, directory))
        except (FileNotFoundError, UntrustedError):
            return False

    def _describe(self, turn: Turn, holder: Holder) -> None:
        with suppress(OSError):
            if turn.descriptor is not None:
                self._files.overwrite(turn.descriptor, json.dumps({**holder.to_json(), _BEATS: True}).encode())

    def _owner(self, turn: Turn) -> Holder | None:
        try:
            if turn.descriptor is not None:
                return Holder.from_json(json.loads(self._files.read(turn.descriptor, _MAX_FILE)))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            pass  # the owner has not written its name yet
        return None

    def _give_back(self, turn: Turn, kind: Kind) -> None:
        """Close the descriptor; the owner first removes the file, so that no lock files pile up."""
        if turn.descriptor is None or turn.pid != os.getpid():
            return  # a forked child has let go already
        if turn.locked:
            with suppress(OSError, UntrustedError), self._tree.directory(self._project, kind, LOCKS) as (directory, _):
                self._files.unlink(turn.name, directory)
            with suppress(OSError):
                self._files.unlock(turn.descriptor)
            held_descriptors.discard(turn.descriptor)
        self._close(turn.descriptor)

    def _close(self, descriptor: int) -> None:
        with suppress(OSError):
            self._files.close(descriptor)
