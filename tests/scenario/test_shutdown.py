"""SIGTERM under load: what was begun is finished, who waits is told at once, and everybody gets on elsewhere."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.http_calls import Caller
from tests.support.postgres import postgres
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cache_server.harness import Built
    from tests.support.servers import Server

UPLOADERS, WAITERS, READERS = 4, 8, 4
BODY = 3_000_000
PIECES = 12
PAUSE = 0.05
"""Between two pieces of a body: an upload takes at least ``PIECES * PAUSE`` seconds, so that a signal meets several."""


class BrokenError(Exception):
    """A server took the connection and gave no answer."""


@dataclass
class Load:
    """Clients that ask the first server, and the second once that refuses the connection, as behind a balancer."""

    servers: list[Server]
    outcomes: Counter[str] = field(default_factory=Counter)
    published: list[Built] = field(default_factory=list)
    begun: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def connect(self) -> http.client.HTTPConnection:
        for server in self.servers:
            connection = http.client.HTTPConnection(*Caller(server.url, "").address, timeout=HANG_SECONDS)
            with contextlib.suppress(OSError):
                connection.connect()
                return connection
        raise AssertionError("no server takes connections")

    def exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, *, pieces: int = 1
    ) -> tuple[int, bytes]:
        """Send a request, a large body in pieces with pauses; `BrokenError` if there is no whole answer."""
        data = json.dumps(body).encode() if isinstance(body, dict) else (body or b"")
        try:
            connection.putrequest(method, path)
            connection.putheader("Authorization", f"Bearer {self.servers[0].token}")
            if isinstance(body, dict):
                connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders()
            step = -(-len(data) // pieces) or 1
            for start in range(0, len(data), step):
                connection.send(data[start : start + step])
                if pieces > 1:
                    time.sleep(PAUSE)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise BrokenError(repr(error)) from error

    def call(self, method: str, path: str, body: Any = None, *, pieces: int = 1) -> tuple[int, bytes]:
        with contextlib.closing(self.connect()) as connection:
            return self.exchange(connection, method, path, body, pieces=pieces)

    def upload_for_ever(self) -> None:
        while not self.stop.is_set():
            built = build(f"upload-{next(self.numbers)}", os.urandom(BODY), log=None)
            try:
                self.begun += 1
                status, _ = self.call("PUT", built.blob(), built.stored["model.neff"], pieces=PIECES)
                self.outcomes[f"upload {status}"] += 1
                status, _ = self.call("PUT", built.path, built.entry.to_json())
                self.outcomes[f"publish {status}"] += 1
                self.published.append(built)
            except BrokenError:
                self.outcomes["upload broken"] += 1

    def read_for_ever(self, built: Built) -> None:
        connection, is_new = self.connect(), True
        while not self.stop.is_set():
            try:
                status, body = self.exchange(connection, "GET", built.artifact)
                self.outcomes[f"read {status}"] += 1
                assert body == built.stored["model.neff"]
                is_new = False
            except BrokenError:
                # a kept connection may be closed between two requests, and every client has to try again
                self.outcomes["read broken" if is_new else "read again on a new connection"] += 1
                connection.close()
                connection, is_new = self.connect(), True
        connection.close()

    def wait_for(self, built: Built) -> None:
        body = {"holder": {"host": "h", "pid": 1}, "wait_seconds": 25}
        while True:
            try:
                status, raw = self.call("POST", built.lease, body)
            except BrokenError:
                self.outcomes["wait broken"] += 1
                return
            state = json.loads(raw).get("state") if status == 200 else status
            self.outcomes[f"wait answered {state}"] += 1
            if state != "wait":
                return


@contextlib.contextmanager
def running(work: list[Callable[[], None]], load: Load) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        load.stop.set()
        for thread in threads:
            thread.join(HANG_SECONDS)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    use_credentials(monkeypatch)
    bucket = seaweedfs().new_url()
    with ExitStack() as stack:
        database = stack.enter_context(postgres().new_database())
        arguments = ("--store", bucket, "--database", database)
        yield [stack.enter_context(running_server(tmp_path / "server", *arguments)) for _ in range(2)]


def test_a_server_that_stops_under_load_breaks_no_upload_and_loses_no_waiter(servers: list[Server]) -> None:
    load = Load(servers)
    held, stored = build("held"), build("stored", os.urandom(200_000))
    keeper = Caller(servers[1].url, servers[1].token, timeout=HANG_SECONDS)
    assert keeper.publish(stored).status == 201
    granted = keeper.call("POST", held.lease, {"holder": {"host": "h", "pid": 1}, "wait_seconds": 0}).json()
    assert granted["state"] == "granted"
    beating = threading.Thread(target=_beat, args=(keeper, held, granted["token"], load.stop))
    work = [
        *[load.upload_for_ever] * UPLOADERS,
        *[lambda: load.read_for_ever(stored)] * READERS,
        *[lambda: load.wait_for(held)] * WAITERS,
    ]
    first = Caller(servers[0].url, servers[0].token)
    with running(work, load):
        beating.start()
        wait_until(lambda: load.outcomes["upload 201"] >= UPLOADERS, "uploads go on")
        wait_until(lambda: b"neff_cache_waiting 8" in first.call("GET", "/metrics").body, "all wait")
        finished = load.outcomes["upload 201"]
        begin = time.monotonic()
        servers[0].process.send_signal(signal.SIGTERM)
        status = servers[0].process.wait(HANG_SECONDS)
        seconds = time.monotonic() - begin
        # they are told at once, ask the other server, and get there what they wait for
        wait_until(lambda: load.outcomes["wait answered wait"] >= WAITERS, "waiters of the first server are told")
        wait_until(lambda: load.outcomes["upload 201"] >= finished + 3 * UPLOADERS, "uploads go on elsewhere")
        assert keeper.publish(held).status == 201
        wait_until(lambda: load.outcomes["wait answered ready"] == WAITERS, "all waiters have the entry")
    beating.join(HANG_SECONDS)
    outcomes = dict(sorted(load.outcomes.items()))
    print(f"\nSIGTERM under load: status {status} after {seconds:.1f} s; {outcomes}")  # noqa: T201 - shown by -s
    assert status == 0
    broken = {name: count for name, count in outcomes.items() if "broken" in name}
    assert broken == {}
    assert set(outcomes) <= {
        "upload 201",
        "publish 201",
        "read 200",
        "read again on a new connection",
        "wait answered wait",
        "wait answered ready",
    }
    assert outcomes["upload 201"] == outcomes["publish 201"] == load.begun
    for built in load.published:
        assert keeper.call("GET", built.artifact).body == built.stored["model.neff"]
    keeper.close()


def _beat(caller: Caller, built: Built, token: str, stop: threading.Event) -> None:
    while not stop.wait(3):
        # 409 once it is published
        assert caller.call("PATCH", built.lease, {"token": token}).status in {200, 409}


@pytest.mark.soak
def test_a_second_signal_ends_the_server_at_once_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    with running_server(tmp_path, environment={"NEFF_CACHE_SHUTDOWN_SECONDS": "600"}) as server:
        built = build("half", os.urandom(BODY), log=None)
        connection = http.client.HTTPConnection(*Caller(server.url, "").address, timeout=HANG_SECONDS)
        connection.putrequest("PUT", built.blob())
        connection.putheader("Authorization", f"Bearer {server.token}")
        connection.putheader("Content-Length", str(BODY))
        connection.endheaders(built.stored["model.neff"][: BODY // 2])
        uploads = server.data / "store" / ".uploads"
        wait_until(lambda: list(uploads.iterdir()), "the upload has begun")
        server.process.send_signal(signal.SIGTERM)
        # the first signal waits for the upload
        wait_until(lambda: not _accepts(server), "the socket is closed")
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(HANG_SECONDS) == 1
        connection.close()
        assert list(uploads.iterdir()) == []
        assert not (server.data / "store" / "default").exists()
    with running_server(tmp_path) as again:
        assert Caller(again.url, again.token).publish(built).status == 201


@pytest.mark.soak
def test_a_balancer_has_time_to_notice_before_connections_are_refused(tmp_path: Path) -> None:
    built = build()
    with running_server(tmp_path, environment={"NEFF_CACHE_DRAIN_SECONDS": "600"}) as server:
        caller = Caller(server.url, server.token, timeout=HANG_SECONDS)
        assert caller.publish(built).status == 201
        assert caller.call("GET", "/readyz").status == 200
        assert caller.call("GET", "/admin/v1/readiness").json()["ready"] is True
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: caller.call("GET", "/readyz").status == 503, "probes hear of it")
        probe = http.client.HTTPConnection(*caller.address, timeout=HANG_SECONDS)
        probe.request("GET", "/readyz")
        answer = probe.getresponse()
        # nobody learns why, but administrators; and the connection's next request goes elsewhere
        assert (answer.status, answer.headers["Connection"]) == (503, "close")
        assert b"draining" not in answer.read()
        probe.close()
        assert "draining" in caller.call("GET", "/admin/v1/readiness").json()["parts"]["server"]
        assert caller.call("GET", "/healthz").status == 200
        assert caller.call("GET", built.artifact).body == built.stored["model.neff"]
        assert caller.publish(build("late")).status == 201
        # nothing is in work now, so that a second signal cuts nothing
        assert server.stop() == 0


def _accepts(server: Server) -> bool:
    try:
        connection = http.client.HTTPConnection(*Caller(server.url, "").address, timeout=HANG_SECONDS)
        connection.connect()
    except OSError:
        return False
    connection.close()
    return True


def test_a_request_on_a_connection_just_made_is_answered_though_the_server_stops(tmp_path: Path) -> None:
    """Each request has its own connection; those that the server has not accepted yet are in the kernel's queue."""
    outcomes: Counter[str] = Counter()
    refused = threading.Event()

    def ask_for_ever() -> None:
        while not refused.is_set():
            try:
                connection = socket.create_connection(address, 10)
            except OSError:
                refused.set()
                return
            with connection:
                try:
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
                    outcomes["answered" if connection.recv(100).startswith(b"HTTP/1.1 200") else "cut off"] += 1
                except OSError as error:
                    outcomes[type(error).__name__] += 1

    with running_server(tmp_path / "server") as server:
        address = Caller(server.url, "").address
        threads = [threading.Thread(target=ask_for_ever) for _ in range(16)]
        for thread in threads:
            thread.start()
        wait_until(lambda: outcomes["answered"] > 200, "requests are answered")
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(HANG_SECONDS)
        assert server.process.wait(HANG_SECONDS) == 0
    # between the last look into the queue and its end the kernel may take one more
    assert outcomes.total() - outcomes["answered"] <= 1, outcomes


def test_what_a_stop_cuts_is_told_so_and_leaves_no_traceback_and_no_file(tmp_path: Path) -> None:
    """An upload that stands still for longer than the server waits is answered 503; the log has a line, not a fault."""
    log = tmp_path / "log"
    config = tmp_path / "config"
    environment = {**os.environ, "XDG_CONFIG_HOME": str(config), "NEFF_CACHE_SHUTDOWN_SECONDS": "1"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "client.cli", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        port = int(process.stdout.readline().partition(" (")[0].rpartition(":")[2])
        token = (config / "neff-cache" / "token").read_text().strip()
        answers = []
        with ExitStack() as stack:
            calls = [
                ("PUT", f"/v1/default/graph/entries/{'a' * 64}/blobs/{'b' * 64}", b"x" * 3_000_000),
                ("POST", "/v1/default/lookup", b"{"),
            ]
            connections = []
            for method, path, body in calls:
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
                head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
                connection.sendall(head.encode() + b"Content-Length: 5000000\r\n\r\n" + body)
                connections.append(connection)
            uploads = tmp_path / "data" / "store" / ".uploads"
            wait_until(lambda: any(uploads.iterdir()), "an upload that is taken in")
            process.send_signal(signal.SIGTERM)
            for connection in connections:
                answer = b""
                with contextlib.suppress(ConnectionResetError):
                    while piece := connection.recv(65536):
                        answer += piece
                answers.append(answer)
        assert process.wait(HANG_SECONDS) == 0
        process.stdout.close()
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 503"] * 2
    text = log.read_text()
    assert "CancelledError" not in text
    assert "Traceback" not in text
    assert list(uploads.iterdir()) == []
