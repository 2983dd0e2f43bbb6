"""Worker processes that compile for this process: started when needed, one request at a time each, never forked.

A worker is ``sys.executable -m MODULE``: neither fork, after which XLA hangs, nor ``multiprocessing``, whose spawn runs
the user's script again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from neuron_backend.compilers import frames

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_LIMIT: Final = 1 << 20
"""Bytes of a worker's standard output and error that are kept per request: the last ones."""

_ATTEMPTS: Final = 3
_END_SECONDS: Final = 10


class WorkerDied(Exception):  # noqa: N818 - reads as the state it reports
    """The worker ended instead of answering: ``returncode`` as in `subprocess`, ``log`` what it had printed."""

    def __init__(self, returncode: int, log: str) -> None:
        super().__init__(f"a compiler worker ended with {returncode}")
        self.returncode = returncode
        self.log = log


class Overtime(Exception):  # noqa: N818
    """The worker did not answer in time and was killed; ``log`` is what it had printed."""

    def __init__(self, log: str) -> None:
        super().__init__("a compiler worker did not answer in time")
        self.log = log


class Answer:
    """What a worker said: header, body, and what it printed meanwhile."""

    __slots__ = ("body", "header", "log")

    def __init__(self, header: dict[str, Any], body: bytes, log: str) -> None:
        self.header = header
        self.body = body
        self.log = log


class Worker:
    """The caller's end of one worker process. Used by one thread at a time."""

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...],
        environment: Callable[[str], dict[str, str]],
    ) -> None:
        """Start ``python -m module SOCKET PARENT *arguments DIR``; ``environment`` makes its variables, given DIR."""
        self._directory = tempfile.mkdtemp(prefix="neff-cache-worker-")
        self._log = Path(self._directory, "worker.log")
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._log.open("ab") as log:
                call = (str(theirs.fileno()), str(os.getpid()), *arguments, self._directory)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, *call],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                    env={**environment(self._directory), **_import_path()},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._connection = ours

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, header: dict[str, Any], body: bytes, *, seconds: float) -> Answer:
        """Send a request and return the answer; raises `WorkerDied`, or TimeoutError after about ``seconds``."""
        deadline = time.monotonic() + seconds
        try:
            self._connection.settimeout(seconds)
            frames.send(self._connection, header, body)
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            answer, content = frames.receive(self._connection)
        except (EOFError, ConnectionError):
            try:
                returncode = self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                returncode = self._process.wait()
            raise WorkerDied(returncode, self.take_log()) from None
        return Answer(answer, content, self.take_log())

    def take_log(self) -> str:
        """Return what the worker printed since the last call, its end if it is much."""
        try:
            with self._log.open("r+b") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(size - LOG_LIMIT, 0))
                text = log.read().decode("utf-8", "replace")
                log.truncate(0)  # the worker appends, so it goes on at the new end
        except FileNotFoundError:  # an idle worker removed its directory as it ended
            return ""
        return text

    def kill(self) -> None:
        """End the process, whatever it does, and remove its directory."""
        self._connection.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def forget(self) -> None:
        """In a forked child: let go of a worker that is the parent's, without touching it."""
        self._connection.close()
        self._process.returncode = 0  # not our child: nothing to wait for, and no warning about it


class WorkerPool:
    """At most ``slots`` workers, several callers. Safe to use from several threads; a forked child starts its own.

    ``start`` makes a worker. A worker that is interrupted, late or dead is never used again.
    """

    def __init__(self, start: Callable[[], Worker], *, slots: int) -> None:
        self._start = start
        self._slots = slots
        self._reset()
        _POOLS.add(self)
        weakref.finalize(self, _kill_all, self._workers)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._starting = 0
        self._closings = 0

    def after_fork_in_child(self) -> None:
        """Give up the parent's workers; the next request starts one of our own."""
        workers = self._workers
        self._reset()
        weakref.finalize(self, _kill_all, self._workers)
        for worker in list(workers):
            worker.forget()
        workers.clear()

    def request(self, header: dict[str, Any], body: bytes = b"", *, seconds: float) -> Answer:
        """Have a worker answer, once one is free; raises `WorkerDied` or `Overtime`.

        Whatever interrupts the caller (KeyboardInterrupt too) kills the worker that was asked.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._request(header, body, seconds)
            except WorkerDied as error:
                # It ended by itself, idle, just as it was asked: that says nothing about the request.
                if error.returncode != 0:
                    raise
                died = error
        raise died

    def _request(self, header: dict[str, Any], body: bytes, seconds: float) -> Answer:
        worker, closings = self._take()
        try:
            answer = worker.ask(header, body, seconds=seconds)
        except TimeoutError:
            log = worker.take_log()
            self._drop(worker)
            raise Overtime(log) from None
        except BaseException:
            self._drop(worker)
            raise
        self._give_back(worker, closings)
        return answer

    def _take(self) -> tuple[Worker, int]:
        with self._changed:
            while True:
                while self._idle:
                    worker = self._idle.pop()
                    if worker.alive:
                        return worker, self._closings
                    self._workers.discard(worker)
                    worker.kill()
                if len(self._workers) + self._starting < self._slots:
                    break
                self._changed.wait()
            self._starting += 1
            closings = self._closings
        try:
            worker = self._start()
        except BaseException:
            with self._changed:
                self._starting -= 1
                self._changed.notify()
            raise
        with self._changed:
            self._starting -= 1
            self._workers.add(worker)
        return worker, closings

    def _give_back(self, worker: Worker, closings: int) -> None:
        with self._changed:
            if closings == self._closings:
                self._idle.append(worker)
                self._changed.notify()
                return
        self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        worker.kill()
        with self._changed:
            self._workers.discard(worker)
            self._changed.notify()

    def close(self) -> None:
        """End the idle workers now, and each busy one once it has answered."""
        with self._changed:
            self._closings += 1
            idle, self._idle = self._idle, []
            self._workers.difference_update(idle)
            self._changed.notify_all()
        for worker in idle:
            worker.kill()


_POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _kill_all(workers: set[Worker]) -> None:
    for worker in list(workers):
        worker.kill()


def _after_fork_in_child() -> None:
    for pool in list(_POOLS):
        pool.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _import_path() -> dict[str, str]:
    """Return the PYTHONPATH, if any, that a worker needs to import what this process imports.

    A worker gets neither this process's PYTHONPATH nor its HOME, below which the user's packages lie.
    """
    standard = {os.path.realpath(directory) for directory in site.getsitepackages()}
    needed: list[str] = []
    for package in ("neuron_backend", "client", "jaxlib", "numpy"):
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            if spec is None or spec.origin is None:
                continue
            directory = os.path.realpath(Path(spec.origin).parent.parent)
            if directory not in standard and directory not in needed:
                needed.append(directory)
    return {"PYTHONPATH": os.pathsep.join(needed)} if needed else {}
