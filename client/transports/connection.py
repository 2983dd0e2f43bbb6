"""Kept HTTP connections whose every wait has an end.

How long each step may take is said by `client.transports.limits`, how it is kept to by
`client.transports.timed_socket`.
"""

from __future__ import annotations

import http.client
import os
import ssl
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from client.errors import Unreachable
from client.transports import patience
from client.transports.dial import dial
from client.transports.timed_socket import TimedSocket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from client.transports.endpoint import Origin, Route
    from client.transports.limits import Limits
    from client.transports.timed_socket import Pace

_KEEP_SECONDS = 30.0
_KEEP = 16
_END_SECONDS = 5.0
"""Seconds in which a body that is whole has to end: what follows its last chunk may be without end."""
REQUEST_ID = "X-Request-Id"
_HUNG_UP = (http.client.RemoteDisconnected, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's verify codes for a chain that ends at nobody we trust."""
_OUR_CERTIFICATE = "see NEURON_CACHE_CLIENT_CERT"
_TLS_REASONS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": f"it wants a client certificate; {_OUR_CERTIFICATE}",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": f"it refused TLS, perhaps for want of a client certificate; {_OUR_CERTIFICATE}",
    "TLSV1_ALERT_UNKNOWN_CA": f"it does not know who issued our client certificate; {_OUR_CERTIFICATE}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"our client certificate has run out; {_OUR_CERTIFICATE}",
    "SSLV3_ALERT_BAD_CERTIFICATE": f"it does not accept our client certificate; {_OUR_CERTIFICATE}",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"it does not accept our client certificate; {_OUR_CERTIFICATE}",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; is its address http://?",
    "RECORD_LAYER_FAILURE": "it does not speak TLS; is its address http://?",
}
"""What the commonest of OpenSSL's reasons mean, as the rest of a sentence about the server."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent. The head of the answer must come within ``answer_seconds``, and all must end by ``until``."""

    method: str
    target: str
    headers: Mapping[str, str]
    answer_seconds: float
    body: bytes | None = None
    until: float = float("inf")


class Connection(http.client.HTTPConnection):
    """One connection, opened by its first request."""

    def __init__(self, route: Route, limits: Limits, monotonic: Callable[[], float]) -> None:
        super().__init__(route.origin.host, route.origin.port)
        self.default_port = 443 if route.origin.is_tls else 80  # is left out of the Host header
        self.route = route
        self.idle_since = 0.0
        self._limits = limits
        self._monotonic = monotonic
        self._timed: TimedSocket | None = None

    def connect(self) -> None:
        """Connect, within the limit for that."""
        self._open()

    def _open(self) -> TimedSocket:
        seconds = min(self._limits.connect, patience.current().left)
        self._timed = TimedSocket(dial(self.route, seconds, monotonic=self._monotonic), self._monotonic)
        self.sock = cast("socket.socket", self._timed)
        return self._timed

    def is_usable(self) -> bool:
        """Return whether a kept connection may carry another request."""
        fresh = self._monotonic() - self.idle_since < _KEEP_SECONDS
        return fresh and self._timed is not None and self._timed.is_silent()

    def exchange(self, request: Request) -> Answer:
        """Send the request and read the head of its answer; raises OSError and HTTPException."""
        timed = self._open() if self.sock is None or self._timed is None else self._timed
        quiet = patience.current().left
        timed.limit(request.until, min(self._limits.stall, quiet))
        target, headers = request.target, dict(request.headers)
        proxy = self.route.proxy
        if proxy is not None and self.route.tls is None:  # in clear text the proxy reads and forwards each request
            target = f"{self.route.origin}{target}"
            if proxy.authorization is not None:
                headers["Proxy-Authorization"] = proxy.authorization
        refused_early: OSError | None = None
        try:
            self.request(request.method, target, request.body, headers)
        except (BrokenPipeError, ConnectionResetError) as error:
            if request.body is None:
                raise
            refused_early = error  # a server that does not want a body says so and hangs up: hear it out
        timed.expect_within(min(request.answer_seconds, quiet))
        try:
            return Answer(self.getresponse(), timed)
        except ConnectionError as error:
            raise error if refused_early is None else refused_early from None

    def __del__(self) -> None:
        """Close what nobody closed: a transport may be dropped without a word."""
        self.close()


class Pool:
    """Idle connections by origin. As many are open as there are requests at once; a fork leaves the parent's alone.

    No lock: every step on the deques is atomic, and a lock held by another thread would be held for ever after a fork.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._process = os.getpid()
        self._idle: dict[Origin, deque[Connection]] = {}

    def take(self, origin: Origin) -> Connection | None:
        """Return an idle connection that still stands, or None."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.close()  # this process's descriptors only: the parent's connections stay as they are
        idle = self._idle.get(origin)
        while idle:
            with suppress(IndexError):  # another thread was quicker
                connection = idle.pop()
                if connection.is_usable():
                    return connection
                connection.close()
        return None

    def give(self, connection: Connection) -> None:
        """Keep a connection whose answer was read to its end."""
        connection.idle_since = self._monotonic()
        idle = self._idle.setdefault(connection.route.origin, deque())
        if len(idle) >= _KEEP:
            connection.close()
        else:
            idle.append(connection)

    def close(self) -> None:
        """Close all idle connections."""
        for idle in list(self._idle.values()):
            while idle:
                with suppress(IndexError):
                    idle.pop().close()


class Wire:
    """Sends requests over a pool of connections that ``connect`` makes; all failures are `Unreachable`."""

    def __init__(self, connect: Callable[[Origin], Connection], monotonic: Callable[[], float]) -> None:
        self._connect = connect
        self._pool = Pool(monotonic)

    @contextmanager
    def exchange(self, origin: Origin, request: Request) -> Iterator[Answer]:
        """Send a request; its answer is read inside the ``with`` block, where OSErrors are translated too."""
        connection, answer = None, None
        try:
            connection, answer = self._send(origin, request)
            yield answer
            if answer.is_finished() and connection.sock is not None:
                self._pool.give(connection)
                connection = None
        except (OSError, http.client.HTTPException) as error:
            path = request.target.partition("?")[0]  # what follows may be a signature that opens the object
            name = request.headers.get(REQUEST_ID)
            shown = f"{request.method} {origin}{path}" + (f" (request {name})" if name else "")
            raise Unreachable(f"{shown} failed: {_reason(error, origin, answer)}") from error
        finally:
            if answer is not None:
                answer.response.close()
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    def _send(self, origin: Origin, request: Request) -> tuple[Connection, Answer]:
        """Send the request, and once more if a kept connection was closed meanwhile: all of ours may come twice."""
        while True:
            kept = self._pool.take(origin)
            connection = kept or self._connect(origin)
            try:
                return connection, connection.exchange(request)
            except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                connection.close()
                if kept is None:
                    raise
            except BaseException:
                connection.close()
                raise


class Answer:
    """The answer to a request, its body not yet read."""

    def __init__(self, response: http.client.HTTPResponse, timed: TimedSocket) -> None:
        self.response = response
        self.status = response.status
        self._timed = timed

    def is_finished(self) -> bool:
        """Return whether the body was read to its end and the connection may be used again."""
        return self.response.isclosed() and not self.response.will_close

    def header(self, name: str) -> str:
        """Return a header's value, or ""."""
        return self.response.getheader(name, "")

    def read_small(self, limit: int) -> bytes:
        """Return the whole body, which must come within the time of the head; raises HTTPException if it is longer."""
        raw = self.response.read(limit + 1)
        if len(raw) > limit:
            raise http.client.HTTPException(f"an answer of more than {limit} bytes")
        if self.response.length:
            raise http.client.IncompleteRead(raw, self.response.length)
        return raw

    def ends(self) -> bool:
        """Return whether nothing follows what was read of the body; chunks end only so, and at once."""
        self._timed.expect_within(min(_END_SECONDS, patience.current().left))
        return not self.response.read(1)

    def begin_body(self, pace: Pace | None = None) -> http.client.HTTPResponse:
        """Return the response for reading a body that may take as long as it makes progress, or keeps ``pace``."""
        self._timed.expect_progress(pace)
        return self.response


def _reason(error: Exception, origin: Origin, answer: Answer | None) -> str:
    if isinstance(error, _HUNG_UP):
        return "it closed the connection in the middle of its answer" if answer else _no_answer(origin)
    if isinstance(error, ssl.SSLError):
        return _tls_reason(error)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return f"{type(error).__name__} {error}".strip()[:200]


def _no_answer(origin: Origin) -> str:
    # servers drop a failed handshake before their alert is on its way, and plain text where they expect TLS
    said = "it closed the connection without an answer"
    if not origin.is_tls:
        return f"{said}; is its address https://?"
    return f"{said}; it may want a client certificate, or refuse ours ({_OUR_CERTIFICATE}), or not speak TLS"


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "; a private CA goes into NEURON_CACHE_CA_FILE" if error.verify_code in _UNKNOWN_AUTHORITY else ""
        return f"its certificate is not accepted ({error.verify_message.rstrip('.')}){hint}"
    return _TLS_REASONS.get(error.reason or "", f"TLS failed ({error.reason or error.strerror or error})")
