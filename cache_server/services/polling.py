"""The lease call as clients see it: one answer now, or the answer that the next event brings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from client.wire import Granted, LeaseAnswer, Ready, Wait

if TYPE_CHECKING:
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.lease_rules import LeaseRequest
    from cache_server.services.leasing import Leasing
    from cache_server.services.waiting import Waiter, Waiters
    from cache_server.workers import Workers

_AFTER_EXPIRY = 0.01
"""Seconds to look after a lease ran out, so that it has run out by the database's clock too."""


class Polling:
    """Ask for leases from the event loop. While a caller waits, it holds neither a thread nor a connection."""

    def __init__(self, *, leasing: Leasing, database: Database, waiters: Waiters, workers: Workers) -> None:
        self._leasing = leasing
        self._database = database
        self._waiters = waiters
        self._workers = workers

    async def ask(
        self, address: Address, request: LeaseRequest, wait_seconds: float, gone: asyncio.Future[None]
    ) -> LeaseAnswer:
        """Return the answer, after waiting up to ``wait_seconds`` for the holder.

        ``gone`` is done when the caller is gone: then nothing is granted, or at least given back at once.
        """
        async with self._waiters.place(address) as waiter:
            gone.add_done_callback(lambda _: waiter.wake(None))
            answer = await self._poll(address, request, wait_seconds, waiter, gone)
        if gone.done() and isinstance(answer, Granted):
            await self._workers.run(self._leasing.release, address, answer.token, None)
        return answer

    async def _poll(
        self,
        address: Address,
        request: LeaseRequest,
        wait_seconds: float,
        waiter: Waiter,
        gone: asyncio.Future[None],
    ) -> LeaseAnswer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            answer = await self._look(address, request)
            left = deadline - loop.time()
            if not isinstance(answer, Wait) or left <= 0 or self._waiters.closed:
                return answer
            # from here on the caller has waited for this generation, and learns its failure
            request = replace(request, seen_generation=answer.generation)
            await waiter.wait(min(left, answer.expires_in + _AFTER_EXPIRY))
            if waiter.entry is not None:
                return Ready(waiter.entry)
            if gone.done():
                return answer

    async def _look(self, address: Address, request: LeaseRequest) -> LeaseAnswer:
        answer = await self._database.read(
            lambda connection: self._leasing.glance(connection, address, request), self._workers.pool
        )
        if answer is not None:
            return answer
        return await self._workers.run(self._leasing.acquire, address, request)
