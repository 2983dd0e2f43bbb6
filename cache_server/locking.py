"""Locks: one holder per key, one server for the periodic work, one server per data folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from typing import TYPE_CHECKING, Protocol

from cache_server.errors import Problem
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cache_server.address import Address


class KeyLocks(Protocol):
    """One holder per key among all servers that share a database.

    Held by publish, delete, quarantine, adoption, sweep and the grant of a lease, on a worker thread. Dies with its
    holder. Not re-entrant.
    """

    def hold(self, address: Address) -> AbstractContextManager[None]:
        """Hold the key's lock; raises `Problem` ``busy`` if another holder keeps it too long."""

    def check(self) -> None:
        """See that a lock which this thread holds has not been lost; raises `SQLAlchemyError` if it has.

        Asked before each step that would harm the next holder's work. Does nothing where no lock is held.
        """


class Duty(Protocol):
    """The periodic work (sweep, collection, scrub) is done by one server of all that share a database."""

    def is_ours(self) -> bool:
        """Return whether this server does it now. Blocks; raises `SQLAlchemyError` if nobody can tell."""


class SoleDuty:
    """`Duty` of a server that is alone."""

    def is_ours(self) -> bool:
        """Return True."""
        return True


class ProcessLocks:
    """`KeyLocks` for one process: enough for SQLite, which serves one server."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._guard = threading.Lock()
        self._locks: dict[Address, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def hold(self, address: Address) -> Iterator[None]:
        """Hold the key's lock; locks nobody wants are forgotten."""
        with self._guard:
            lock, users = self._locks.get(address, (threading.Lock(), 0))
            self._locks[address] = (lock, users + 1)
        try:
            if not lock.acquire(timeout=self._timeout):
                raise Problem("busy", headers={"Retry-After": "1"})
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                lock, users = self._locks[address]
                if users == 1:
                    del self._locks[address]
                else:
                    self._locks[address] = (lock, users - 1)

    def check(self) -> None:
        """Do nothing: a lock in this process is lost with the process only."""


@contextlib.contextmanager
def only_server(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` for as long as the server runs; `ConfigurationError` if another server has it.

    The kernel drops the lock with the process, however it ends.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another neff-cache server already uses {path.parent} (lock file {path.name}): "
                "give this one another --data-dir, or run several servers on PostgreSQL and a shared store"
            ) from None
        yield
    finally:
        os.close(descriptor)
