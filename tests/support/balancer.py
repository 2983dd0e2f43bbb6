"""What stands in front of several servers in production: gives each connection to the next server that takes it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Balancer:
    """Forwards TCP connections in turn. A server that refuses a connection is passed over."""

    def __init__(self, urls: Sequence[str], sent: Callable[[int, int], None] = lambda _server, _bytes: None) -> None:
        """``sent`` hears, for each piece that goes to a server, its number and the connection's bytes so far."""
        self._targets = [(urlsplit(url).hostname or "", urlsplit(url).port or 0) for url in urls]
        self._sent = sent
        self._turns = count()
        self.url = ""

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=512)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        async with server:
            await stop.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            turn = next(self._turns)
            for attempt in range(len(self._targets)):
                number = (turn + attempt) % len(self._targets)
                try:
                    answers, requests = await asyncio.open_connection(*self._targets[number])
                except OSError:
                    continue
                with contextlib.closing(requests):
                    await self._forward(number, (reader, requests), (answers, writer))
                return

    async def _forward(
        self,
        number: int,
        up: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        down: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool) -> None:
            total = 0
            with contextlib.suppress(OSError):
                while piece := await reader.read(1 << 16):
                    total += len(piece)
                    if counted:
                        self._sent(number, total)
                    writer.write(piece)
                    await writer.drain()

        tasks = [asyncio.ensure_future(copy(*up, counted=True)), asyncio.ensure_future(copy(*down, counted=False))]
        # either end's close ends both: HTTP needs no half-open connections
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def balanced(
    urls: Sequence[str], sent: Callable[[int, int], None] = lambda _server, _bytes: None
) -> Iterator[Balancer]:
    """Run a `Balancer` on a thread of its own."""
    balancer = Balancer(urls, sent)
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(balancer.serve(ready, stop)))
    thread.start()
    try:
        assert ready.wait(HANG_SECONDS)
        yield balancer
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(HANG_SECONDS)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
