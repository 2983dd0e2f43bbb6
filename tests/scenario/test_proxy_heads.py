"""Heads of answers stay below what a proxy takes as it is delivered: a real nginx in front of a real server."""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from cache_server.http.outputs import MAX_HEAD_SENT
from client.names import MAIN_OUTPUT
from client.transports.http import HttpTransport
from client.wire import ENTRY_HEADER, Entry, Output, Producer
from tests.cache_server.harness import build, sha256
from tests.fakes.waiting import HANG_SECONDS
from tests.support.nginx import running_nginx
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cache_server.harness import Built
    from tests.support.servers import Server

OUTPUTS = (1, 8, 12, 13, 14, 15, 16, 17, 18, 60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as found:
        yield found


def _send(server: Server, path: str, body: bytes, kind: str = "application/octet-stream") -> None:
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": kind}
    with urllib.request.urlopen(
        urllib.request.Request(server.url + path, body, headers, method="PUT"), timeout=HANG_SECONDS
    ) as answer:
        assert answer.status == 201


@pytest.fixture(scope="module")
def entries(server: Server) -> dict[int, Built]:
    found = {}
    for count in OUTPUTS:
        built = build(f"entry of {count}", os.urandom(500), log=None)
        data = {f"kernel-{number:02}.neff": b"%d" % number for number in range(count - 1)}
        outputs = [*built.entry.outputs, *(Output(name, sha256(each), len(each)) for name, each in data.items())]
        producer = Producer("neff-cache/test", "ip-10-0-0-1.eu-central-1.compute.internal", "llama-3-405b-pretraining")
        built = replace(built, entry=replace(built.entry, outputs=tuple(outputs), producer=producer))
        for name, each in {MAIN_OUTPUT: built.stored[MAIN_OUTPUT], **data}.items():
            _send(server, built.blob(name), each)
        _send(server, built.path, json.dumps(built.entry.to_json()).encode(), "application/json")
        found[count] = built
    return found


def _head(url: str, method: str, path: str, headers: dict[str, str]) -> bytes:
    """Return the head of an answer, as bytes on the socket."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), 30) as connection:
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: localhost",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def test_no_head_grows_past_what_a_proxy_takes(server: Server, entries: dict[int, Built]) -> None:
    """With every other header there can be: 304, 206 and 200, HEAD and GET, a request id of the longest."""
    carried = 0
    for built in entries.values():
        tag = f'"{built.entry.outputs[0].sha256}"'
        for method, more in (
            ("GET", {}),
            ("HEAD", {}),
            ("GET", {"Range": "bytes=1-499"}),
            ("GET", {"If-None-Match": tag}),
        ):
            headers = {"Authorization": f"Bearer {server.token}", "X-Request-Id": "r" * 64, **more}
            head = _head(server.url, method, built.artifact, headers)
            assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 206", b"HTTP/1.1 304"))
            assert len(head) <= MAX_HEAD_SENT
            carried += f"{ENTRY_HEADER.lower()}: ".encode() in head
    # it is left out where it must be, and nowhere else: about 200 bytes an output in base64
    assert carried >= 4 * len([count for count in OUTPUTS if count <= 8])


@pytest.mark.parametrize("count", OUTPUTS)
@pytest.mark.share(4)
def test_an_entry_of_many_outputs_is_a_hit_behind_nginx_as_it_is_delivered(
    server: Server, entries: dict[int, Built], tmp_path: Path, count: int
) -> None:
    built = entries[count]
    with running_nginx(tmp_path / "nginx", server.url) as url:
        transport = HttpTransport(url, "default", {"NEURON_CACHE_TOKEN": server.token})
        try:
            found = transport.fetch(built.entry.kind, built.entry.key)
        finally:
            transport.close()
    assert found is not None
    assert found.neff == built.stored[MAIN_OUTPUT]
    assert found.entry.outputs == built.entry.outputs
    assert isinstance(found.entry, Entry)
