"""A real nginx that keeps all it may in front of a real server: no caller gets what another one was told."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS
from tests.support.nginx import running_nginx
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.servers import Server

_SECOND_USER = "Bearer " + "x" * 40


class _Proxied:
    def __init__(self, url: str, server: Server, cache: Path) -> None:
        self.server, self.cache = server, cache
        self._at = urlsplit(url)

    def ask(
        self, method: str, path: str, authorization: str | None = None, body: bytes | None = None
    ) -> tuple[int, str, bytes]:
        """Return status, what nginx says of its cache, and body."""
        connection = http.client.HTTPConnection(self._at.hostname or "", self._at.port, timeout=HANG_SECONDS)
        headers = {"Host": "localhost", "Content-Type": "application/json"}
        if authorization is not None:
            headers["Authorization"] = authorization
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers["X-Cache"], answer.read()
        finally:
            connection.close()

    @property
    def admin(self) -> str:
        return f"Bearer {self.server.token}"


def _caching(folder: Path, upstream: str) -> AbstractContextManager[str]:
    """Run a cache that keeps every answer, of every status, for as long as it may."""
    keeps = f"proxy_cache_path {folder}/cache keys_zone=all:1m inactive=1h;"
    how = "proxy_cache all; proxy_cache_valid any 1h; add_header X-Cache $upstream_cache_status always;"
    return running_nginx(folder, upstream, http=keeps, location=how)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Proxied]:
    folder = tmp_path_factory.mktemp("proxied")
    with running_server(folder) as server, _caching(folder / "nginx", server.url) as url:
        yield _Proxied(url, server, folder / "nginx" / "cache")


def test_the_cache_in_front_keeps_what_says_nothing(tmp_path: Path) -> None:
    """The check of the check: with a server that forgets the header, this nginx would keep its answers."""

    class Forgetful(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Forgetful) as origin:
        thread = threading.Thread(target=origin.serve_forever)
        thread.start()
        try:
            with _caching(tmp_path / "nginx", f"http://127.0.0.1:{origin.server_port}") as proxy:
                at = urlsplit(proxy)
                seen = []
                for _ in range(2):
                    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=HANG_SECONDS)
                    connection.request("GET", "/")
                    seen.append(connection.getresponse().headers["X-Cache"])
                    connection.close()
            assert seen == ["MISS", "HIT"]
        finally:
            origin.shutdown()
            thread.join()


def test_a_token_list_is_not_handed_to_a_caller_without_a_token(proxied: _Proxied) -> None:
    for path in ("/admin/v1/tokens", "/admin/v1/audit", "/v1/-/whoami", "/metrics", "/admin/v1/policy", "/"):
        assert proxied.ask("GET", path, proxied.admin)[0] == 200
        for other in (None, _SECOND_USER):
            status, cached, body = proxied.ask("GET", path, other)
            assert (status, cached) == (401, "MISS"), path
            assert proxied.server.token[:8].encode() not in body


def test_a_refusal_is_not_handed_to_a_caller_with_a_token(proxied: _Proxied) -> None:
    for path in ("/admin/v1/tokens", "/v1/default/revoked", "/v1/-/whoami", "/v1/default/plans/none"):
        assert proxied.ask("GET", path)[0] == 401
        assert proxied.ask("GET", path, proxied.admin)[0] in {200, 404}


def test_an_entry_is_found_after_it_was_missed_and_is_not_read_without_a_token(proxied: _Proxied) -> None:
    built = build("behind a proxy", secrets.token_bytes(2000))
    for path in (built.artifact, built.path, built.blob()):
        assert proxied.ask("GET", path, proxied.admin)[0] == 404
    for output in built.entry.outputs:
        put = proxied.ask("PUT", built.blob(output.name), proxied.admin, built.stored[output.name])
        assert put[0] == 201
    assert proxied.ask("PUT", built.path, proxied.admin, json.dumps(built.entry.to_json()).encode())[0] == 201
    for path in (built.artifact, built.path, built.blob()):
        assert proxied.ask("GET", path, proxied.admin)[0] == 200
        assert proxied.ask("GET", path)[0] == 401
        assert proxied.ask("DELETE" if path == built.path else "HEAD", path, _SECOND_USER)[0] == 401
    assert proxied.ask("DELETE", built.path, proxied.admin)[0] == 204
    for path in (built.artifact, built.path, built.blob()):
        assert proxied.ask("GET", path, proxied.admin)[0] == 404


def test_nothing_at_all_stays_in_the_cache(proxied: _Proxied) -> None:
    for path in ("/healthz", "/readyz", "/docs", "/openapi.json", "/none", "/v1/NOT-A-PROJECT/x"):
        for authorization in (None, proxied.admin):
            proxied.ask("GET", path, authorization)
    kept = [name for _, _, names in os.walk(proxied.cache) for name in names]
    assert kept == []
