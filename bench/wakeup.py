"""How long after a publish the last of many waiters has the entry: on the same server, on another, and by polling.

Two real servers on one PostgreSQL and one S3 store (SeaweedFS), and waiters that each hold a long poll open. Beside
them, in the same run, the same number of waiters that ask once a second instead: what jobs do whose cache cannot wake
them. Times are from the moment the publisher has its answer: from then on the entry is durable for everyone.

    python bench/wakeup.py [--waiters 256] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.cache_server.harness import Built, build
from tests.support.postgres import postgres
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, seaweedfs
from tests.support.servers import Server, running_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

POLL_SECONDS = 1.0
HOLDER = {"host": "bench", "pid": 1, "rank": None, "label": ""}


class Caller:
    """One kept connection to a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._address = urlsplit(server.url)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def call(self, method: str, path: str, body: bytes) -> Any:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._server.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
        answer = json.loads(await self._reader.readexactly(length))
        assert int(status.split()[1]) < 300, answer
        return answer

    async def ask(self, built: Built, wait_seconds: float) -> Any:
        body = json.dumps({"holder": HOLDER, "wait_seconds": wait_seconds, "may_publish": False})
        return await self.call("POST", built.lease, body.encode())


async def long_poll(caller: Caller, built: Built) -> float:
    answer = await caller.ask(built, 25)
    assert answer["state"] == "ready", answer
    return time.perf_counter()


async def short_poll(caller: Caller, built: Built) -> float:
    # waiters of a job have begun at different moments
    await asyncio.sleep(random.random() * POLL_SECONDS)  # noqa: S311 - a phase
    while (await caller.ask(built, 0))["state"] != "ready":  # noqa: ASYNC110 - polling is what is measured
        await asyncio.sleep(POLL_SECONDS)
    return time.perf_counter()


@dataclasses.dataclass
class Delays:
    """Seconds from the publisher's answer: to the middle one and to the last of the waiters, for each round."""

    middle: list[float]
    last: list[float]


async def measure(
    publisher: Server, waited_at: Server, wait: Callable[[Caller, Built], Awaitable[float]], waiters: int, rounds: int
) -> Delays:
    delays = Delays([], [])
    async with Caller(publisher) as caller:
        for _ in range(rounds):
            built = build(os.urandom(8).hex(), os.urandom(1000))
            body = json.dumps({"holder": HOLDER}).encode()
            granted = await caller.call("POST", built.lease, body)
            assert granted["state"] == "granted"
            for output in built.entry.outputs:
                await caller.call("PUT", built.blob(output.name), built.stored[output.name])
            async with Waiting(waited_at, built, wait, waiters) as waiting:
                await asyncio.sleep(1.5)  # all have asked once
                await caller.call("PUT", built.path, json.dumps(built.entry.to_json()).encode())
                published = time.perf_counter()
                ended = [end - published for end in await asyncio.gather(*waiting)]
            delays.middle.append(statistics.median(ended))
            delays.last.append(max(ended))
    return delays


class Waiting:
    """Waiters with a connection each."""

    def __init__(
        self, server: Server, built: Built, wait: Callable[[Caller, Built], Awaitable[float]], number: int
    ) -> None:
        self._server, self._built, self._wait, self._number = server, built, wait, number
        self._callers: list[Caller] = []

    async def __aenter__(self) -> list[asyncio.Future[float]]:
        for _ in range(self._number):
            self._callers.append(await Caller(self._server).__aenter__())
        return [asyncio.ensure_future(self._wait(caller, self._built)) for caller in self._callers]

    async def __aexit__(self, *_: object) -> None:
        for caller in self._callers:
            await caller.__aexit__()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiters", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_EC2_METADATA_DISABLED="true")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(postgres().new_database())
        options = ("--store", seaweedfs().new_url(), "--database", database)
        here, there = (stack.enter_context(running_server(folder, *options)) for _ in range(2))
        found = {
            name: asyncio.run(measure(here, waited_at, wait, arguments.waiters, arguments.rounds))
            for name, waited_at, wait in (
                ("woken, same server", here, long_poll),
                ("woken, other server", there, long_poll),
                ("1 s poll, same server", here, short_poll),
                ("1 s poll, other server", there, short_poll),
            )
        }
    if arguments.json:
        print(json.dumps({name: dataclasses.asdict(delays) for name, delays in found.items()}))
        return
    print(f"{arguments.waiters} waiters, {arguments.rounds} rounds, milliseconds after the publisher's answer")
    print(f"{'':24}{'middle one':>12}{'last one':>12}{'last, worst round':>20}")
    for name, delays in found.items():
        columns = (statistics.median(delays.middle), statistics.median(delays.last), max(delays.last))
        print(f"{name:24}{columns[0] * 1e3:12.0f}{columns[1] * 1e3:12.0f}{columns[2] * 1e3:20.0f}")


main()
