"""Plain HTTP calls to a real server, from tests that must see exactly what it answers."""

from __future__ import annotations

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

    @property
    def name(self) -> str:
        """The problem's name, or ``""``."""
        try:
            return str(json.loads(self.body).get("name", ""))
        except (ValueError, AttributeError):
            return ""


@dataclass
class Caller:
    """One connection for each call: nothing is carried over from an earlier one."""

    url: str
    token: str
    timeout: float = 20.0

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(*self.address, timeout=self.timeout)
        given = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        if isinstance(body, dict):
            body, given["Content-Type"] = json.dumps(body), "application/json"
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read())
        except (http.client.HTTPException, OSError):
            return Answer(0)
        finally:
            connection.close()

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
