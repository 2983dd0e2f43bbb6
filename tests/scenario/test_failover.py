"""A PostgreSQL that fails over under a running server: a real standby is promoted, the old primary lives on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.postgres import own_postgres
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.postgres import Postgres
    from tests.support.servers import Server

pytestmark = pytest.mark.once


class Name:
    """What an operator's database name is: it leads new connections to whoever is the primary, by its word."""

    def __init__(self) -> None:
        self.target = self.port = 0

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await stop.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            with contextlib.closing(writer), contextlib.closing(back):
                copies = [asyncio.ensure_future(_copy(*ends)) for ends in ((reader, back), (there, writer))]
                _, pending = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
                for copy in pending:
                    copy.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()


@pytest.fixture
def name() -> Iterator[Name]:
    name = Name()
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(name.serve(ready, stop)))
    thread.start()
    try:
        assert ready.wait(HANG_SECONDS)
        yield name
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(HANG_SECONDS)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def call(server: Server, method: str, path: str, body: Any = None) -> int:
    request = urllib.request.Request(
        server.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def lease(server: Server, key: str) -> int:
    return call(server, "POST", f"/v1/default/graph/leases/{key}", {"holder": {"host": "h", "pid": 1}})


def ready(server: Server) -> int:
    return call(server, "GET", "/readyz")


def fence(primary: Postgres) -> None:
    """Leave the old primary as managed services do: it answers those who are connected, and takes no writes."""
    primary.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    primary.execute("SELECT pg_reload_conf()")


def test_leases_and_publishes_go_on_after_a_failover_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Name
) -> None:
    use_credentials(monkeypatch)
    keys = iter(build(str(number)).entry.key for number in range(1000))
    with own_postgres() as primary, contextlib.ExitStack() as stack:
        primary.execute("CREATE DATABASE cache")
        standby = primary.standby()
        stack.callback(standby.stop)
        name.target = primary.port
        options = ("--database", f"postgresql://postgres@127.0.0.1:{name.port}/cache")
        store = ("--store", seaweedfs().new_url())
        server = stack.enter_context(
            running_server(tmp_path, *options, *store, environment={"NEFF_CACHE_LOG_LEVEL": "warning"})
        )
        assert lease(server, next(keys)) == 200
        wait_until(lambda: ready(server) == 200, "ready")
        # what the pool holds are connections to the old primary from here on
        with contextlib.ExitStack() as many:
            for _ in range(6):
                thread = threading.Thread(target=lease, args=(server, next(keys)))
                thread.start()
                many.callback(thread.join)

        fence(primary)
        wait_until(lambda: ready(server) == 503, "not ready while the database takes no writes")
        assert lease(server, next(keys)) == 503  # the name still leads to the old one

        standby.execute("SELECT pg_promote()")
        name.target = standby.port
        wait_until(lambda: ready(server) == 200, "ready")
        assert [lease(server, next(keys)) for _ in range(20)] == [200] * 20
        # no lock, no duty and no listener is left behind at a server that binds nobody
        wait_until(
            lambda: (
                not primary.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = 'cache' AND application_name = 'neff-cache'"
                )
            ),
            "the old primary has no connection left",
            seconds=60,
        )
