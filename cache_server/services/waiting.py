"""Waiting for a key: one asyncio event per key and server, no thread, no database connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy.orm import Session

    from cache_server.address import Address
    from client.wire import Entry


class Waiter:
    """One caller's place in the queue for a key."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.entry: Entry | None = None

    def wake(self, entry: Entry | None) -> None:
        """Wake the caller, with the entry if that is what happened."""
        self.entry = entry
        self._woken.set()

    async def wait(self, seconds: float) -> bool:
        """Return True once woken, False after ``seconds``; ready to be woken again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        woken = self._woken.is_set()
        self._woken.clear()
        return woken


class Waiters(Protocol):
    """Wakes those who wait for a key, on this server and on every other that shares the database.

    A wake-up may come too often, and after a broken connection not at all: whoever is woken looks again, and looks by
    himself when the lease he waits for runs out.
    """

    def announce(self, session: Session, address: Address) -> None:
        """Let the other servers know of the end of a lease when, and only if, the transaction commits."""

    def wake(self, address: Address, entry: Entry | None = None) -> None:
        """Wake all who wait for the key on this server; from any thread. ``entry`` saves them a look."""

    def place(self, address: Address) -> AbstractAsyncContextManager[Waiter]:
        """Enter the queue before looking, so that nothing that happens after the look is missed."""

    @property
    def count(self) -> int:
        """How many wait on this server."""

    def close(self) -> None:
        """Wake everybody and let nobody wait any more: the server stops. Event loop only."""

    @property
    def closed(self) -> bool:
        """Whether the server stops."""


class LocalWaiters:
    """`Waiters` of one server."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places: dict[Address, set[Waiter]] = {}
        self.closed = False

    @property
    def count(self) -> int:
        """How many wait."""
        return sum(map(len, self._places.values()))

    def waited_for(self) -> list[Address]:
        """Return the keys that somebody waits for; from any thread."""
        # one step of the interpreter: no place is taken or left in the middle of it
        return list(self._places)

    def is_waited_for(self, address: Address) -> bool:
        """Return whether somebody waits for the key; from any thread."""
        return address in self._places

    def announce(self, session: Session, address: Address) -> None:
        """Do nothing: there is no other server."""

    @contextlib.asynccontextmanager
    async def place(self, address: Address) -> AsyncIterator[Waiter]:
        """Enter the queue of the key."""
        self._loop = asyncio.get_running_loop()
        waiter = Waiter()
        self._places.setdefault(address, set()).add(waiter)
        try:
            yield waiter
        finally:
            places = self._places[address]
            places.discard(waiter)
            if not places:
                del self._places[address]

    def wake(self, address: Address, entry: Entry | None = None) -> None:
        """Wake the key's waiters from any thread."""
        loop = self._loop
        if loop is not None:
            # a loop that was closed has nobody left to wake
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake, address, entry)

    def _wake(self, address: Address, entry: Entry | None) -> None:
        for waiter in self._places.get(address, ()):
            waiter.wake(entry)

    def close(self) -> None:
        """Wake everybody."""
        self.closed = True
        for address in list(self._places):
            self._wake(address, None)
