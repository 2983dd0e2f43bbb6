"""Calls on a file system that may never return, made on a thread that can be given up.

A network file system whose server is gone, or a FUSE daemon that stands still, keeps a call in the kernel for ever, and
no signal but SIGKILL ends it. So where that can happen a call is made on a thread of its own, and whoever waits for it
goes on without when it has not moved for a while. Such a thread keeps nobody from exiting. On a disk of this machine
calls are made as ever: `client.mounts` tells the two apart. What is called must let other threads run while it waits,
as `os.stat` and the like do, and `os.pathconf` does not.
"""

from __future__ import annotations

import _thread
import errno
import os
from collections import deque

from client.mounts import may_stall

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

LIMIT = 10.0
"""Seconds without progress after which a call is given up: what a job may lose to a shared cache, too."""
AGAIN = 1.0
"""Seconds for every further place, once a process has lost `LIMIT`."""
MOST_STALLS = 2
"""How often a place may stall before it is given up for good; until then it is used again once the call came back."""


class StalledError(OSError):
    """A call on a place that does not answer; the message names the place and says for how long it was waited for."""

    def __init__(self, where: str, seconds: float) -> None:
        super().__init__(errno.ETIMEDOUT, f"the file system did not answer within {seconds:g} s", where)


class _Job:
    """One call: what to do, how it ended, and what to do with a result that nobody waits for any more."""

    __slots__ = ("abandoned", "ended", "error", "late", "lock", "over", "result", "work")

    def __init__(self, work: Callable[[], Any], late: Callable[[Any], object]) -> None:
        self.work = work
        self.late = late
        self.lock = _thread.allocate_lock()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()
        self.over = self.abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits
            self.error = error
        with self.lock:
            self.over = True
        self.ended.release()
        if self.abandoned:
            try:
                self.late(self.result if self.error is None else None)
            except Exception:  # noqa: BLE001 - nobody is there to hear it
                self.result = None

    def abandon(self) -> bool:
        """Wait no longer; False if it has ended at this very moment."""
        with self.lock:
            self.abandoned = not self.over
        return self.abandoned


class _Worker:
    """A thread that makes one call after another, and is kept for the next one."""

    __slots__ = ("inbox", "wake")

    def __init__(self) -> None:
        self.inbox: deque[_Job] = deque()
        self.wake = _thread.allocate_lock()
        self.wake.acquire()
        _thread.start_new_thread(self._work, ())

    def _work(self) -> None:
        while True:
            self.wake.acquire()
            job = self.inbox.popleft()
            job.run()
            if job.abandoned:
                return
            del job  # and its result with it
            _idle.append(self)

    def begin(self, job: _Job) -> None:
        self.inbox.append(job)
        self.wake.release()


_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)  # a child has none of its parent's threads


def _begin(job: _Job) -> None:
    """Have an idle worker, or a new one, make the call; where no thread can be had it is made here."""
    try:
        worker = _idle.pop() if _idle else _Worker()
    except IndexError:  # another thread took the last one
        worker = _Worker()
    except RuntimeError:  # the interpreter is about to end, or this user's threads are used up
        job.run()
        return
    worker.begin(job)


class Place:
    """A file system as far as one setting of a job reaches it: a folder, shown to people as ``where``.

    Safe to use from several threads.
    """

    _lost = 0.0
    """Seconds that this process has lost to all places."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._stuck: set[_Job] = set()
        self._stalls = 0
        self._returns: bool | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether calls here fail at once: one has not come back yet, or too many did not in time."""
        return bool(self._stuck) or self._stalls >= MOST_STALLS

    def call(
        self,
        work: Callable[[], T],
        *,
        late: Callable[[T | None], object] = lambda _: None,
        moved: Callable[[], int] = lambda: 0,
    ) -> T:
        """Return ``work()``; raises `StalledError` if it does not return in time, and lets it run on alone.

        ``late`` is called with a result that came too late. ``moved`` says how many bytes were read or written so far:
        as long as that grows, time is no matter.
        """
        limit = max(LIMIT - Place._lost, AGAIN)
        if self.is_given_up:
            raise StalledError(self.where, LIMIT)

        def came_back(result: T | None) -> None:
            self._stuck.discard(job)
            late(result)

        job = _Job(work, came_back)
        _begin(job)
        seen = moved()
        while not job.ended.acquire(timeout=limit):
            now = moved()
            if now != seen:
                seen = now
                continue
            self._stuck.add(job)
            if job.abandon():
                self._stalls += 1
                Place._lost += limit
                raise StalledError(self.where, limit)
            self._stuck.discard(job)
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[no-any-return] # of whatever type the call returns

    def reach(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which uses files below ``where``: as it is on a disk of this machine, else as `call` does.

        Raises `StalledError`.
        """
        if self._returns is None:
            self._returns = not may_stall(self.where)
        return work() if self._returns else self.call(work)

    def leave(self, work: Callable[[], object]) -> None:
        """Have ``work()`` done without waiting for it."""
        job = _Job(work, lambda _: None)
        job.abandoned = True
        _begin(job)


def place_of(where: str) -> Place:
    """Return the one `Place` of this process for a folder, which its parts share."""
    return _places.setdefault(where, Place(where))


def folder_of(path: str | os.PathLike[str]) -> Place:
    """Return the `Place` of a file that a setting names."""
    return place_of(os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120 - as below


_places: dict[str, Place] = {}
