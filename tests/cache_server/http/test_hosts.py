"""The host that a request names, as bytes on a socket: no client library would send most of it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as found:
        yield found


def _status(server: Server, *lines: str) -> int:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), 30) as connection:
        connection.sendall(
            "\r\n".join([*lines, f"Authorization: Bearer {server.token}", "Connection: close", "", ""]).encode()
        )
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return int(answer.split()[1])


PATH = "/admin/v1/readiness"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((f"GET {PATH} HTTP/1.1", "Host: localhost"), 200),
        ((f"GET http://localhost{PATH} HTTP/1.1", "Host: localhost"), 200),
        # of a whole address its own host counts, and it must not differ from Host either
        ((f"GET http://evil.example{PATH} HTTP/1.1", "Host: localhost"), 421),
        ((f"GET http://localhost{PATH} HTTP/1.1", "Host: evil.example"), 421),
        ((f"GET http://localhost@evil.example{PATH} HTTP/1.1", "Host: localhost"), 421),
        ((f"GET {PATH} HTTP/1.1", "Host: localhost", "Host: evil.example"), 421),
        ((f"GET {PATH} HTTP/1.1", "Host: localhost:80@evil"), 421),
        ((f"GET {PATH} HTTP/1.1",), 421),
    ],
)
def test_only_the_hosts_on_the_list_are_answered(server: Server, lines: tuple[str, ...], status: int) -> None:
    assert _status(server, *lines) == status
