"""What a job tells its server at exit, and what that may cost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING

from client.cache import Cache
from client.names import Kind
from tests.client.programs import compiled, document
from tests.client.transports.raw_server import RawServer, answer
from tests.fakes.waiting import HANG_SECONDS
from tests.support.servers import Server, running_server

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.client.transports.raw_server import Received

NOT_FOUND = answer(404, b'{"name": "not_found"}', Content_Type="application/problem+json")
GRANTED = json.dumps({"state": "granted", "token": "t", "generation": 1, "ttl_seconds": 30}).encode()

JOB = """
import sys
from client.cache import Cache
from tests.client.programs import document

def forbidden():
    raise SystemExit("the compiler was started")

Cache.from_environment().get_or_compile(document(), forbidden)
"""


def _cache(node: Path, url: str, **environ: str) -> Cache:
    return Cache.from_environment({"NEURON_CACHE_NODE_DIR": str(node), "NEURON_CACHE_URL": url, **environ})


def _metrics(server: Server) -> dict[str, float]:
    request = urllib.request.Request(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"})
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as got:
        lines = got.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_a_server_learns_of_hits_and_saved_seconds_on_disks_that_it_never_sees(tmp_path: Path) -> None:
    """Two jobs on one node: the first compiles, the second finds it on the disk and asks the server nothing else."""
    with running_server(tmp_path / "server") as server:
        environ = {"XDG_CONFIG_HOME": str(server.config)}
        first = _cache(tmp_path / "node", server.url, **environ)
        first.get_or_compile(document(), lambda: compiled(seconds=7.5))
        first.close()
        ended = subprocess.run(
            [sys.executable, "-c", JOB],
            env={
                "PATH": "/usr/bin:/bin",
                "NEURON_CACHE_NODE_DIR": str(tmp_path / "node"),
                "NEURON_CACHE_URL": server.url,
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        counted = _metrics(server)
    of = 'kind="graph",project="default"'
    assert counted[f"neff_cache_client_lookups_total{{{of}}}"] == 2
    assert counted[f"neff_cache_client_compiles_total{{{of}}}"] == 1
    assert counted[f'neff_cache_client_hits_total{{{of},tier="disk"}}'] == 1
    assert counted[f"neff_cache_client_saved_seconds_total{{{of}}}"] == 7.5


def _script(report: Callable[[socket.socket], bytes | None]) -> Callable[[Received, socket.socket], bytes | None]:
    def script(request: Received, sock: socket.socket) -> bytes | None:
        if request.target.endswith("/reports"):
            return report(sock)
        if "/leases/" in request.target:
            return answer(200, GRANTED, Content_Type="application/json")
        return NOT_FOUND

    return script


def _reports(server: RawServer) -> list[Received]:
    return [request for request in server.requests if request.target.endswith("/reports")]


def test_a_report_names_what_was_used_and_nothing_of_the_process(tmp_path: Path) -> None:
    with RawServer(_script(lambda sock: answer(204))) as server:
        cache = _cache(tmp_path / "node", server.url, NEURON_CACHE_MODE="ro")
        cache.get_or_compile(document(), compiled)
        cache.close()
        cache.close()
        (sent,) = _reports(server)
    body = json.loads(sent.body)
    assert body["keys"] == [document().key]
    assert body["by_kind"]["graph"]["compiles"] == 1


def test_a_server_that_takes_no_report_holds_an_exit_up_for_no_longer_than_the_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    over, ended = threading.Event(), threading.Event()

    def deaf(_: socket.socket) -> None:
        over.wait(HANG_SECONDS)
        ended.set()

    with RawServer(_script(deaf)) as server:
        cache = _cache(tmp_path / "node", server.url, NEURON_CACHE_MODE="ro")
        cache.get_or_compile(document(), compiled)
        cache.close()
        assert not ended.is_set(), "the exit waited for the server"
        over.set()
        assert _reports(server)
    assert not [record for record in caplog.records if "report" in record.getMessage()]


def test_a_server_that_did_not_answer_is_not_sent_a_report_either(tmp_path: Path) -> None:
    with RawServer(lambda request, sock: b"") as server:  # hangs up whatever is asked
        cache = _cache(tmp_path / "node", server.url)
        cache.get_or_compile(document(), compiled)
        cache.close()
        assert server.requests
        assert not _reports(server)


def test_a_process_that_looked_nothing_up_reports_nothing(tmp_path: Path) -> None:
    with RawServer(_script(lambda sock: answer(204))) as server:
        _cache(tmp_path / "node", server.url).close()
        assert not server.requests


def test_a_message_about_a_request_names_the_id_under_which_the_server_logged_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RawServer(lambda request, sock: answer(503)) as server:
        cache = _cache(tmp_path / "node", server.url)
        cache.lookup(Kind.GRAPH, document().key)
        cache.close()
        # headers as they came, whatever the case of their names
        sent = [{name.lower(): value for name, value in request.headers.items()} for request in server.requests]
    ids = [headers["x-request-id"] for headers in sent]
    assert len(set(ids)) == len(ids)
    (warned,) = [record.getMessage() for record in caplog.records if "503" in record.getMessage()]
    assert any(f"(request {one})" in warned for one in ids)
