"""Leases of jobs whose interpreter is busy for longer than a lease lives, against a server that notes every renewal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from client.heartbeat import Heartbeat
from client.names import Kind
from client.renewer import Renewer
from client.transports.http import HttpTransport
from client.wire import Granted
from tests.client.programs import document
from tests.client.transports.raw_server import RawServer, answer
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from tests.client.transports.raw_server import Received

TTL = 1.5
HELD = 4.0
"""Seconds for which a job's interpreter does nothing else: longer than a lease."""
PATIENCE = HANG_SECONDS
KEY = document().key

JOB = """
import ctypes, os, sys, time
from client.cache import Cache
from tests.client.programs import compiled, document

def compiler():
    time.sleep(1.5)  # so long that it is worth a process
    print(time.monotonic(), flush=True)
    if sys.argv[1] == "held":
        ctypes.PyDLL(None).usleep(int(float(sys.argv[2]) * 1e6))  # keeps the interpreter's lock
        print(time.monotonic(), flush=True)
    else:
        if os.fork() == 0:
            time.sleep(60)  # holds all pipes of its parent
        print(cache._mine().cluster._remote.renewer._process.pid, flush=True)
        time.sleep(60)
    return compiled()

cache = Cache.from_environment()
cache.get_or_compile(document(), compiler)
cache.close()
"""


class _Server:
    """Grants every lease, and says no to renewals once ``lost`` is set."""

    def __init__(self) -> None:
        self.renewed: list[float] = []
        self.lost = False

    def __call__(self, request: Received, _: socket.socket) -> bytes:
        problem = "application/problem+json"
        if request.method == "PATCH":
            self.renewed.append(time.monotonic())
            return answer(409, b'{"name": "lease_lost"}', Content_Type=problem) if self.lost else answer(204)
        if request.method == "POST" and "/leases/" in request.target:
            granted = {"state": "granted", "token": "t", "generation": 1, "ttl_seconds": TTL}
            return answer(200, json.dumps(granted).encode(), Content_Type="application/json")
        return answer(404, b'{"name": "not_found"}', Content_Type=problem)


@contextmanager
def _job(server: RawServer, folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    environ = {
        "PATH": os.environ["PATH"],
        "NEURON_CACHE_URL": server.url,
        "NEURON_CACHE_NODE_DIR": str(folder / "node"),
    }
    with subprocess.Popen(
        [sys.executable, "-c", JOB, *words],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _soon(what: str, check: object) -> None:
    assert callable(check)
    deadline = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _is_gone(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_job_that_holds_the_interpreters_lock_for_longer_than_a_lease_keeps_it(tmp_path: Path) -> None:
    script = _Server()
    with RawServer(script) as server, _job(server, tmp_path, "held", str(HELD)) as process:
        assert process.stdout is not None
        begin, end = float(process.stdout.readline()), float(process.stdout.readline())
        assert end - begin >= HELD
    # the bounds are wide for a busy machine: a thread of the job would have renewed nothing at all
    assert len([moment for moment in script.renewed if begin + 0.2 < moment < end - 0.2]) >= 2


def test_the_process_that_renews_ends_with_a_killed_job_though_its_fork_holds_the_pipe(tmp_path: Path) -> None:
    script = _Server()
    with RawServer(script) as server, _job(server, tmp_path, "killed") as process:
        assert process.stdout is not None
        process.stdout.readline()
        renewer = int(process.stdout.readline())
        assert not _is_gone(renewer)
        os.kill(process.pid, signal.SIGKILL)  # the fork lives on
        process.wait(PATIENCE)
        _soon("it outlived the job", lambda: _is_gone(renewer))


def test_a_lease_that_is_lost_is_known_to_be_though_another_process_heard_it(tmp_path: Path) -> None:
    script = _Server()
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    with RawServer(script) as server:
        renewer = Renewer(server.url, "default", environ)
        lease = Granted("t", 1, TTL)
        transport = HttpTransport(server.url, "default", environ)
        heartbeat = Heartbeat(transport, Kind.GRAPH, KEY, lease, limit=60, renewer=renewer)
        try:
            _soon("nothing was renewed", lambda: script.renewed)
            assert not heartbeat.lost
            script.lost = True
            _soon("the loss was not heard of", lambda: heartbeat.lost)
        finally:
            heartbeat.stop()
            renewer.close()
            transport.close()


def test_a_lease_is_renewed_by_a_thread_where_the_process_was_killed(tmp_path: Path) -> None:
    script = _Server()
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    with RawServer(script) as server:
        renewer = Renewer(server.url, "default", environ)
        transport = HttpTransport(server.url, "default", environ)
        heartbeat = Heartbeat(transport, Kind.GRAPH, KEY, Granted("t", 1, TTL), limit=60, renewer=renewer)
        try:
            _soon("nothing was renewed", lambda: script.renewed)
            process = renewer._process
            assert process is not None
            process.kill()
            process.wait(PATIENCE)
            before = len(script.renewed)
            _soon("nothing was renewed any more", lambda: len(script.renewed) > before + 1)
            assert not heartbeat.lost
        finally:
            heartbeat.stop()
            renewer.close()
            transport.close()


def test_a_compile_of_a_moment_starts_no_process(tmp_path: Path) -> None:
    renewer = Renewer("http://127.0.0.1:1", "default", {"XDG_CONFIG_HOME": str(tmp_path)})
    transport = HttpTransport("http://127.0.0.1:1", "default", {"XDG_CONFIG_HOME": str(tmp_path)})
    heartbeat = Heartbeat(transport, Kind.GRAPH, KEY, Granted("t", 1, 30), limit=60, renewer=renewer)
    heartbeat.stop()
    heartbeat._thread.join(PATIENCE)
    assert renewer._process is None
    transport.close()
