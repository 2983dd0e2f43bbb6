"""A proxy in front of a real S3 server that answers wrongly, on demand."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from client.s3.retry import RetryPolicy
from tests.support.s3 import BUCKET, S3Server, signed

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class PassedTime:
    """A clock that only sleeping moves."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def policy(self, **limits: Any) -> RetryPolicy:
        return RetryPolicy(clock=lambda: self.now, sleep=self.sleep, draw=lambda: 0.5, **limits)


class Seen(NamedTuple):
    """A request that came to the proxy."""

    method: str
    target: str
    headers: dict[str, str]


@dataclass
class Fault:
    """What to do with the next ``times`` requests whose method and target match."""

    method: str
    target: str = ""
    times: int = 1
    status: int = 0
    """Answer with this status, and a body with ``code``. 0: end the connection without an answer."""
    code: str = ""
    body: bytes | None = None
    """The body in place of that; HEAD tells of its length."""
    headers: dict[str, str] = field(default_factory=dict)
    applied: bool = False
    """Do what was asked before answering wrongly."""
    without_length: bool = False
    """Leave the wrong answer's length out; its end is that of the connection."""
    cut_after: int | None = None
    """Send the true answer, but end the connection after so many bytes of its body."""
    header: str = ""
    """Only requests that carry this header (lower case), and whose value holds ``header_value``."""
    header_value: str = ""

    def takes(self, seen: Seen) -> bool:
        return (
            self.times > 0
            and seen.method == self.method
            and re.search(self.target, seen.target) is not None
            and (not self.header or (self.header in seen.headers and self.header_value in seen.headers[self.header]))
        )


class FaultProxy:
    """Passes requests on to ``upstream``; ``faults`` are tried in order."""

    def __init__(self, upstream: S3Server) -> None:
        self.upstream = urlsplit(upstream.endpoint).netloc
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.hidden_headers = {"transfer-encoding", "connection"}
        """Headers of answers (lower case) that are not passed on."""
        self.ignore_if_none_match_of: set[str] = set()
        """Methods whose condition the store never hears of."""
        self.truncate_bodies: int | None = None
        """Of each body only so many bytes reach the store."""
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}"

    def break_next(self, method: str, target: str = "", **how: Any) -> None:
        self.faults.append(Fault(method, target, **how))

    def count(self, method: str, target: str = "") -> int:
        """Return how many such requests came."""
        return sum(seen.method == method and re.search(target, seen.target) is not None for seen in self.seen)

    def take(self, seen: Seen) -> Fault | None:
        with self._lock:
            self.seen.append(seen)
            fault = next((fault for fault in self.faults if fault.takes(seen)), None)
            if fault is not None:
                fault.times -= 1
            return fault

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextmanager
def fault_proxy(upstream: S3Server) -> Iterator[FaultProxy]:
    """Run a proxy; it is gone afterwards."""
    proxy = FaultProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


_REPLACED = {
    *("authorization", "x-amz-date", "x-amz-content-sha256", "content-md5", "host", "content-length"),
    "if-none-match",
}
"""Headers that do not survive when a request is changed and signed again."""


class _Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def _handle(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        fault = self.server.proxy.take(Seen(self.command, self.path, headers))
        if fault is None or fault.cut_after is not None:
            self._send(self._ask(body), None if fault is None else fault.cut_after)
            return
        if fault.applied:
            self._ask(body)
        if fault.status:
            self._send(self._wrong(fault))
        else:
            self.close_connection = True

    def _wrong(self, fault: Fault) -> _Answer:
        text = f"<Error><Code>{fault.code}</Code></Error>".encode() if fault.body is None else fault.body
        sent = b"" if self.command == "HEAD" else text
        length = len(sent) if fault.body is None else len(text)
        if fault.without_length:
            self.close_connection = True
            return _Answer(fault.status, list(fault.headers.items()), sent)
        return _Answer(fault.status, [*fault.headers.items(), ("Content-Length", str(length))], sent)

    def _ask(self, body: bytes) -> _Answer:
        proxy = self.server.proxy
        # unchanged, Host included: the signature covers it
        headers = self.headers.items()
        if proxy.truncate_bodies is not None or self.command in proxy.ignore_if_none_match_of:
            body = body[: proxy.truncate_bodies]
            unsigned = {name: value for name, value in headers if name.lower() not in _REPLACED}
            unsigned |= {"Content-Length": str(len(body)), "Host": proxy.upstream}
            headers = signed(self.command, f"http://{proxy.upstream}{self.path}", unsigned, body).items()
        connection = http.client.HTTPConnection(proxy.upstream, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
        kept = [item for item in answer.getheaders() if item[0].lower() not in proxy.hidden_headers]
        if not any(name.lower() == "content-length" for name, _ in kept):
            kept.append(("Content-Length", str(len(data))))
        return _Answer(answer.status, kept, data)

    def _send(self, answer: _Answer, cut_after: int | None = None) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(answer.body[:cut_after])
        if cut_after is not None:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the base class's names
