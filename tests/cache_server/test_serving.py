"""The real server as its own process."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.cache_server.harness import build, sha256
from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.servers import Server, running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cache_server.harness import Built


LONG_LEASES = {"NEFF_CACHE_LEASE_TTL_SECONDS": "3600"}
"""On a machine with much other work those of half a minute would run out amid a test."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path, environment=LONG_LEASES) as server:
        yield server


def _connect(server: Server) -> http.client.HTTPConnection:
    host, port = server.url.removeprefix("http://").split(":")
    return http.client.HTTPConnection(host, int(port), timeout=HANG_SECONDS)


def _call(server: Server, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = _connect(server)
    headers = {"Authorization": f"Bearer {server.token}"}
    if isinstance(body, dict):
        body, headers["Content-Type"] = json.dumps(body), "application/json"
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _publish(server: Server, built: Built) -> int:
    for output in built.entry.outputs:
        assert _call(server, "PUT", built.blob(output.name), built.stored[output.name])[0] in {200, 201}
    return _call(server, "PUT", built.path, built.entry.to_json())[0]


def _ask(server: Server, built: Built, wait_seconds: float = 0) -> dict[str, Any]:
    body = {"holder": {"host": "h", "pid": 1}, "wait_seconds": wait_seconds}
    status, raw = _call(server, "POST", built.lease, body)
    assert status == 200, raw
    return dict(json.loads(raw))


def _until(condition: Callable[[], bool]) -> None:
    wait_until(condition, "what the test waits for")


def _metric(server: Server, name: str) -> float:
    text = _call(server, "GET", "/metrics")[1].decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))


def test_a_server_started_without_options_serves_and_stops_with_status_0(server: Server) -> None:
    built = build(neff=os.urandom(5_000_000))
    assert _publish(server, built) == 201
    assert _call(server, "GET", built.artifact) == (200, built.stored["model.neff"])
    for number in (signal.SIGTERM, signal.SIGINT):
        with running_server(server.data.parent / str(number)) as other:
            assert other.stop(number) == 0
    assert server.stop() == 0


def test_entries_outlive_the_server_even_when_it_is_killed(tmp_path: Path) -> None:
    built = build()
    with running_server(tmp_path, environment=LONG_LEASES) as server:
        assert _publish(server, built) == 201
        held = _ask(server, build("held"))
        server.stop(signal.SIGKILL)
    with running_server(tmp_path, environment=LONG_LEASES) as again:
        assert _call(again, "GET", built.artifact) == (200, built.stored["model.neff"])
        assert _ask(again, build("held"))["generation"] == held["generation"]


def test_a_second_server_on_the_same_data_is_refused_in_one_sentence(server: Server) -> None:
    command = [sys.executable, "-m", "client.cli", "serve", "--port", "0", "--data-dir", str(server.data)]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(server.config)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "another neff-cache server already uses" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_a_port_that_is_taken_is_said_in_one_sentence(server: Server, tmp_path: Path) -> None:
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "client.cli", "serve", "--port", port, "--data-dir", str(tmp_path / "other")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 1
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "other").exists()


def test_a_stop_wakes_those_who_wait(tmp_path: Path) -> None:
    built = build()
    # whoever is not woken wants to wait for longer than that, and is cut off: no answer, and status 1
    environment = {**LONG_LEASES, "NEFF_CACHE_SHUTDOWN_SECONDS": "20"}
    with running_server(tmp_path, environment=environment) as server:
        _ask(server, built)
        answers: list[dict[str, Any]] = []
        waiter = threading.Thread(target=lambda: answers.append(_ask(server, built, wait_seconds=25)))
        waiter.start()
        _until(lambda: _metric(server, "neff_cache_waiting") == 1)
        assert server.stop() == 0
        waiter.join(HANG_SECONDS)
        assert answers[0]["state"] == "wait"


def test_a_stop_lets_an_upload_end(server: Server) -> None:
    built = build(neff=os.urandom(3_000_000), log=None)
    data = built.stored["model.neff"]
    connection = _connect(server)
    connection.putrequest("PUT", built.blob())
    for name, value in (("Authorization", f"Bearer {server.token}"), ("Content-Length", str(len(data)))):
        connection.putheader(name, value)
    connection.endheaders(data[:2_000_000])
    _until(lambda: len(list((server.data / "store" / ".uploads").iterdir())) == 1)
    server.process.send_signal(signal.SIGTERM)
    _until(lambda: not _accepts(server))
    connection.send(data[2_000_000:])
    answer = connection.getresponse()
    assert answer.status == 201
    answer.read()
    connection.close()
    assert server.stop() == 0
    assert (server.data / "store" / built.address.path / sha256(data)).read_bytes() == data


@pytest.mark.soak
def test_a_stop_does_not_wait_for_ever_for_a_dead_upload(tmp_path: Path) -> None:
    with running_server(tmp_path, environment={"NEFF_CACHE_SHUTDOWN_SECONDS": "1"}) as server:
        built = build(neff=os.urandom(3_000_000))
        connection = _connect(server)
        connection.putrequest("PUT", built.blob())
        for name, value in (("Authorization", f"Bearer {server.token}"), ("Content-Length", "3000000")):
            connection.putheader(name, value)
        connection.endheaders(built.stored["model.neff"][:2_000_000])
        uploads = server.data / "store" / ".uploads"
        _until(lambda: len(list(uploads.iterdir())) == 1)
        server.stop()
        connection.close()
        assert list(uploads.iterdir()) == []
        assert not (server.data / "store" / "default").exists()


def _accepts(server: Server) -> bool:
    host, port = server.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_client_that_vanishes_in_an_upload_leaves_nothing_behind(server: Server) -> None:
    built = build(neff=os.urandom(3_000_000))
    uploads = server.data / "store" / ".uploads"
    for chunked in (False, True):
        connection = _connect(server)
        connection.putrequest("PUT", built.blob())
        connection.putheader("Authorization", f"Bearer {server.token}")
        connection.putheader(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", "3000000")))
        part = built.stored["model.neff"][:2_000_000]
        connection.endheaders(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        _until(lambda: len(list(uploads.iterdir())) == 1)
        connection.close()
        _until(lambda: not list(uploads.iterdir()))
    assert not (server.data / "store" / "default").exists()


def test_a_vanished_waiter_is_not_granted_what_it_waited_for(server: Server) -> None:
    built = build()
    held = _ask(server, built)
    connection = _connect(server)
    body = json.dumps({"holder": {"host": "gone", "pid": 1}, "wait_seconds": 25})
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    connection.request("POST", built.lease, body, headers)
    _until(lambda: _metric(server, "neff_cache_waiting") == 1)
    connection.close()
    _until(lambda: _metric(server, "neff_cache_waiting") == 0)
    assert _call(server, "POST", f"{built.lease}/release", {"token": held["token"]})[0] == 200
    assert _ask(server, built)["state"] == "granted"


@pytest.mark.soak
def test_a_full_disk_refuses_uploads_and_goes_on_serving(tmp_path: Path) -> None:
    stored, large = build("stored"), build("large", os.urandom(6_000_000))
    with running_server(tmp_path) as server:
        assert _publish(server, stored) == 201
        # a limit on the size of files is the nearest to a full disk that needs no root
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
        status, body = _call(server, "PUT", large.blob(), large.stored["model.neff"])
        assert (status, json.loads(body)["name"]) == (507, "store_full")
        assert list((server.data / "store" / ".uploads").iterdir()) == []
        assert _call(server, "GET", stored.artifact) == (200, stored.stored["model.neff"])


@pytest.mark.soak
def test_connections_are_kept_between_requests_and_after_errors(server: Server) -> None:
    built = build(neff=os.urandom(2_000_000))
    _publish(server, built)
    connection = _connect(server)
    headers = {"Authorization": f"Bearer {server.token}"}
    sockets = set()
    for path, status in (
        (built.artifact, 200),
        (build("miss").artifact, 404),
        ("/nowhere", 404),
        (built.artifact, 200),
    ):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == status
        answer.read()
        assert connection.sock is not None
        sockets.add(connection.sock.getsockname())
    connection.close()
    assert len(sockets) == 1
