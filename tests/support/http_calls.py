"""Plain HTTP calls to a real server, from tests that must see exactly what it answers."""

from __future__ import annotations

import contextlib
import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.cache_server.harness import Built


class Answer(NamedTuple):
    """Status and body; status 0: the connection broke before there was an answer."""

    status: int
    body: bytes = b""
    tag: str = ""

    def json(self) -> dict[str, Any]:
        """The body, if it is a JSON object, else nothing."""
        with contextlib.suppress(ValueError):
            value = json.loads(self.body)
            if isinstance(value, dict):
                return value
        return {}

    @property
    def name(self) -> str:
        """The problem's name, or ``""``."""
        return str(self.json().get("name", "")) if self.status >= 400 else ""


@dataclass
class Caller:
    """Calls a server; with ``keep`` on one connection, else each on its own, so that nothing is carried over."""

    url: str
    token: str
    timeout: float = 20.0
    keep: bool = False
    _kept: http.client.HTTPConnection | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = self._kept or http.client.HTTPConnection(*self.address, timeout=self.timeout)
        self._kept = None
        given = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        if isinstance(body, dict):
            body, given["Content-Type"] = json.dumps(body), "application/json"
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            found = Answer(answer.status, answer.read(), answer.headers.get("ETag", "").strip('"'))
        except (http.client.HTTPException, OSError):
            connection.close()
            return Answer(0)
        if self.keep:
            self._kept = connection
        else:
            connection.close()
        return found

    def close(self) -> None:
        """Close a kept connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def upload(self, built: Built) -> bool:
        """Upload all outputs; return whether all were acknowledged."""
        for output in built.entry.outputs:
            headers = {"Content-Encoding": "zstd"} if output.encoding == "zstd" else {}
            answer = self.call("PUT", built.blob(output.name), built.stored[output.name], headers)
            if answer.status not in {200, 201}:
                return False
        return True

    def publish(self, built: Built) -> Answer:
        """Upload and publish; the answer to the publish, or to whatever broke before it."""
        if not self.upload(built):
            return Answer(0)
        return self.call("PUT", built.path, built.entry.to_json())
