"""Who may start a compiler on this node, over all its processes: first come, first served.

::

    <root>/v1/.slots/door                   locked for the moments in which somebody looks at the queue and changes it
    <root>/v1/.slots/w-<number>-<id>        one that waits; the lowest number is next
    <root>/v1/.slots/r-<bytes>-<id>         a compiler that runs, and the memory reserved for it

The kernel's lock on each of these files is its owner's sign of life: what is not locked belongs to a process that is
dead, however it died, and is removed. Nobody overtakes, so that a large compile is not kept waiting by small ones for
ever. Processes with different settings each keep to their own.

An owner that lives and stands still (`client.node.beat`) is passed over, and its file stays: once it moves again it
counts again, so that as many as ran too many then end before the next one begins.
"""

from __future__ import annotations

import errno
import os
import re
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from client.node import beat
from client.node.lock import FIRST_POLL, LONGEST_POLL, TELL_AFTER, held_descriptors
from client.node.permissions import UntrustedError
from client.node.tree import unique_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.node.permissions import Trust
    from client.node.tree import Tree

SLOTS = ".slots"  # no project's name begins with a dot
DOOR = "door"
WAITING, RUNNING = "w-", "r-"
_QUEUED = re.compile(f"{WAITING}[0-9]{{12,18}}-[0-9]+-[0-9a-f]{{16}}")
_STARTED = re.compile(f"{RUNNING}[0-9]{{1,19}}-[0-9]+-[0-9a-f]{{16}}")
"""Such names in full: no other file is counted, or removed."""
EVERYTHING = 1 << 60
"""Bytes: the reservation of a compile that wants to be alone."""
RESERVED_FOR = 60.0
"""Seconds without a beat after which an owner's memory counts as free, its slot and place being so sooner: a process
that only waits for a machine that swaps holds its memory still, and must not get company for it."""
DOOR_LIMIT = 60.0
"""Seconds after which a door that does not open is taken for broken: it is held for milliseconds."""


class _Ticket:
    """A place in the queue: the name of its file now, and the descriptor whose lock says that we live."""

    __slots__ = ("descriptor", "name", "pid")

    def __init__(self) -> None:
        self.name = ""
        self.descriptor: int | None = None
        self.pid = os.getpid()


class Queue:
    """``slots`` compilers at once (None: any number) within ``budget`` bytes (None: any). Safe to use from threads."""

    def __init__(
        self,
        tree: Tree,
        *,
        slots: int | None,
        budget: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        watches: dict[str, beat.Watch] | None = None,
    ) -> None:
        """``watches`` is what earlier queues of this process have seen of the files."""
        self._tree = tree
        self._files = tree.files
        self._slots = slots
        self._budget = EVERYTHING if budget is None else budget
        self._clock = clock
        self._sleep = sleep
        self._watches = {} if watches is None else watches

    @contextmanager
    def enter(
        self, size: int, *, limit: float, waiting: Callable[[float], None] = lambda _: None, alone: bool = False
    ) -> Iterator[bool]:
        """Wait up to ``limit`` seconds until a compile of ``size`` bytes may run, and leave at the end.

        ``alone`` waits until no other compiler runs, and keeps others out. One that is larger than the whole budget
        runs alone as well. Gives False where there are no locks or the limit is reached: the compiler is then started
        all the same. ``waiting`` is called once, with the seconds waited so far.
        """
        ticket, admitted = _Ticket(), False
        try:
            with suppress(OSError, UntrustedError):
                admitted = self._wait(ticket, EVERYTHING if alone else size, limit, waiting)
            if not admitted:
                self._leave(ticket)
            yield admitted
        finally:
            self._leave(ticket)

    def _wait(self, ticket: _Ticket, size: int, limit: float, waiting: Callable[[float], None]) -> bool:
        start = opened = self._clock()
        pause, told = FIRST_POLL, False
        while True:
            with self._door() as (directory, trust):
                if directory is not None:
                    opened = self._clock()
                    if self._admits(ticket, size, directory, trust):
                        return True
            now = self._clock()
            if now - start >= limit or now - opened >= DOOR_LIMIT:
                return False
            if not told and now - start >= TELL_AFTER:
                told = True
                waiting(now - start)
            self._sleep(pause)
            pause = min(pause * 1.5, LONGEST_POLL)

    @contextmanager
    def _door(self) -> Iterator[tuple[int | None, Trust]]:
        """Give the opened directory if the door is ours for the moment, else None."""
        with self._tree.directory(SLOTS, make=True) as (directory, trust):
            door = self._tree.open_lock_file(DOOR, directory, trust)
            try:
                yield directory if self._files.lock(door) else None, trust
            finally:
                # with a forked child in between, closing alone would not give the lock back
                with suppress(OSError):
                    self._files.unlock(door)
                self._files.close(door)

    def _join(self, ticket: _Ticket, directory: int, trust: Trust) -> None:
        """Take the last place in the queue. Only behind the door."""
        last = max(map(_number, filter(_QUEUED.fullmatch, self._files.list(directory))), default=0)
        ticket.name = unique_name(f"{WAITING}{last + 1:012d}-")
        ticket.descriptor = self._tree.open_lock_file(ticket.name, directory, trust)
        held_descriptors.add(ticket.descriptor)
        if not self._files.lock(ticket.descriptor):
            raise OSError(errno.ENOLCK, "a new file is locked already")

    def _admits(self, ticket: _Ticket, size: int, directory: int, trust: Trust) -> bool:
        """Return whether the compile may run, and note that it does. Only behind the door."""
        if ticket.descriptor is None:
            self._join(ticket, directory, trust)
        names = self._files.list(directory)
        for gone in self._watches.keys() - set(names):
            self._watches.pop(gone, None)
        for name in sorted(name for name in names if _QUEUED.fullmatch(name) and name < ticket.name):
            still = self._seconds_still(name, directory, trust)
            if still is not None and still < beat.STILL_AFTER:
                return False
        running = [name for name in names if _STARTED.fullmatch(name)]
        if not self._fits(size, dict.fromkeys(running, 0.0)):
            found = {name: self._seconds_still(name, directory, trust) for name in running}
            if not self._fits(size, {name: still for name, still in found.items() if still is not None}):
                return False
        name = unique_name(f"{RUNNING}{size}-")
        self._files.rename(ticket.name, name, directory)
        ticket.name = name
        return True

    def _fits(self, size: int, running: dict[str, float]) -> bool:
        """Return whether there is room beside those that run, each of which has stood still for some seconds."""
        moving = [name for name, still in running.items() if still < beat.STILL_AFTER]
        if self._slots is not None and len(moving) >= self._slots:
            return False
        reserved = [_number(name) for name, still in running.items() if still < RESERVED_FOR]
        return not reserved or sum(reserved) + size <= self._budget

    def _seconds_still(self, name: str, directory: int, trust: Trust) -> float | None:
        """Return how long a file's owner has not moved, or None if it is dead; the file is then removed.

        Only behind the door: nobody else makes files then.
        """
        descriptor = self._tree.open_lock_file(name, directory, trust)
        try:
            if not self._files.lock(descriptor):
                watch = self._watches.setdefault(name, beat.Watch(self._clock))
                return watch.seconds_still(self._files.status(descriptor))
            with suppress(FileNotFoundError):
                self._files.unlink(name, directory)
            return None
        finally:
            self._files.close(descriptor)

    def _leave(self, ticket: _Ticket) -> None:
        """Give the place up, if there is one."""
        descriptor, ticket.descriptor = ticket.descriptor, None
        if descriptor is None or ticket.pid != os.getpid():
            return  # a forked child has let go already
        held_descriptors.discard(descriptor)
        with suppress(OSError, UntrustedError), self._tree.directory(SLOTS) as (directory, _):
            self._files.unlink(ticket.name, directory)
        with suppress(OSError):
            self._files.unlock(descriptor)
        with suppress(OSError):
            self._files.close(descriptor)


def _number(name: str) -> int:
    """Return the number in a file's name: the place in the queue, or the bytes reserved."""
    return int(name.split("-")[1])
