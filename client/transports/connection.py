"""Kept HTTP connections whose every wait has an end.

Deadlines: connecting, look-up and TLS included, takes at most 2 s; the head of an answer comes within the time its
request allows (5 s, longer for a waiting poll); then at least `PROGRESS` bytes arrive, or are taken, every 30 s. A
plain socket time-out would not do: a server that sends one byte now and then never runs into it.
"""

from __future__ import annotations

import http.client
import io
import os
import select
import ssl
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from client.errors import Unreachable
from client.transports.dial import dial

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from client.transports.endpoint import Origin, Proxy

    if TYPE_CHECKING:
        from _typeshed import ReadableBuffer, WriteableBuffer

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
STALL_SECONDS = 30.0
PROGRESS = 64 * 1024
_BUFFER = 64 * 1024
_KEEP_SECONDS = 30.0
_KEEP = 16


class TimedSocket:
    """A connected socket as `http.client` uses one; ``monotonic`` seconds decide how long it may wait."""

    def __init__(self, sock: socket.socket, monotonic: Callable[[], float]) -> None:
        self._sock = sock
        self._monotonic = monotonic
        self._until = self._last = float("inf")
        self._moved = 0
        self._stall = float("inf")
        self._users = 1

    def limit(self, until: float) -> None:
        """Let nothing go on after ``until``, whatever else is allowed."""
        self._last = until

    def expect_within(self, seconds: float) -> None:
        """Let all that is read from here on arrive within ``seconds``."""
        self._until, self._stall = self._monotonic() + seconds, float("inf")

    def expect_progress(self, seconds: float) -> None:
        """Let reading go on for as long as `PROGRESS` bytes arrive every ``seconds``."""
        self._until, self._stall, self._moved = self._monotonic() + seconds, seconds, 0

    def _arm(self) -> None:
        left = min(self._until, self._last) - self._monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(None if left == float("inf") else left)

    def read_into(self, buffer: WriteableBuffer) -> int:
        """Return how many bytes were put into ``buffer``; raises TimeoutError after the deadline."""
        self._arm()
        count = self._sock.recv_into(buffer)
        self._moved += count
        if self._moved >= PROGRESS and self._stall != float("inf"):
            self._until, self._moved = self._monotonic() + self._stall, 0
        return count

    def sendall(self, data: ReadableBuffer) -> None:
        """Send ``data`` for as long as the other side takes `PROGRESS` bytes every `STALL_SECONDS`."""
        rest = memoryview(data).cast("B")
        while rest:
            self._until = self._monotonic() + STALL_SECONDS
            self._arm()
            self._sock.sendall(rest[:PROGRESS])
            rest = rest[PROGRESS:]

    def is_silent(self) -> bool:
        """Return whether the kept connection is as it was left: what arrives unasked is its end."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader, which keeps the socket open until it is closed itself."""
        self._users += 1
        return io.BufferedReader(_Reader(self), _BUFFER)

    def close(self) -> None:
        """Close the socket once its last reader is closed."""
        self._users -= 1
        if not self._users:
            self._sock.close()


class _Reader(io.RawIOBase):
    def __init__(self, sock: TimedSocket) -> None:
        self._timed = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._timed.read_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._timed.close()
        super().close()


class Connection(http.client.HTTPConnection):
    """One connection to ``origin``; ``proxy`` and ``tls`` as `client.transports.dial.dial` takes them."""

    def __init__(
        self, origin: Origin, proxy: Proxy | None, tls: ssl.SSLContext | None, monotonic: Callable[[], float]
    ) -> None:
        super().__init__(origin.host, origin.port)
        self.default_port = 443 if origin.is_tls else 80
        self.origin = origin
        self.idle_since = 0.0
        self._proxy = proxy
        self._tls = tls
        self._monotonic = monotonic
        self.timed: TimedSocket | None = None

    def connect(self) -> None:
        """Connect within `CONNECT_SECONDS`."""
        sock = dial(self.origin, self._proxy, self._tls, CONNECT_SECONDS, self._monotonic)
        self.timed = TimedSocket(sock, self._monotonic)
        self.sock = cast("socket.socket", self.timed)

    def __del__(self) -> None:
        """Close what a caller never gave back."""
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
                fresh = self._monotonic() - connection.idle_since < _KEEP_SECONDS
                if fresh and connection.timed is not None and connection.timed.is_silent():
                    return connection
                connection.close()
        return None

    def give(self, connection: Connection) -> None:
        """Keep a connection whose answer was read to its end."""
        connection.idle_since = self._monotonic()
        idle = self._idle.setdefault(connection.origin, deque())
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
    """Sends requests over a pool of connections that ``connection`` makes; all failures are `Unreachable`."""

    def __init__(
        self, connection: Callable[[Origin], Connection], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._pool = Pool(monotonic)

    @contextmanager
    def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        until: float = float("inf"),
    ) -> Iterator[Answer]:
        """Send a request; the answer is read inside the ``with`` block, and OSErrors there are translated too.

        The head must come within ``answer_seconds`` and nothing goes on after ``until``. All our requests may be sent
        twice, so that one on a kept connection that the server had closed meanwhile is sent again on a new one.
        """
        connection = None
        try:
            connection, response = self._send(origin, method, target, headers, body, answer_seconds, until)
            yield Answer(response, connection)
            if response.isclosed() and not response.will_close and connection.sock is not None:
                self._pool.give(connection)
                connection = None
        except (OSError, http.client.HTTPException) as error:
            path = target.partition("?")[0].removeprefix(str(origin))
            raise Unreachable(f"{method} {origin}{path} failed: {_reason(error)}") from error
        finally:
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    def _send(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        answer_seconds: float,
        until: float,
    ) -> tuple[Connection, http.client.HTTPResponse]:
        while True:
            kept = self._pool.take(origin)
            connection = kept or self._connection(origin)
            try:
                return connection, _exchange(connection, method, target, headers, body, answer_seconds, until)
            except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                connection.close()
                if kept is None:
                    raise
            except BaseException:
                connection.close()
                raise


def _exchange(
    connection: Connection,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | None,
    answer_seconds: float,
    until: float,
) -> http.client.HTTPResponse:
    if connection.sock is None:
        connection.connect()
    timed = connection.timed
    assert timed is not None  # noqa: S101 - connect() has just set it
    timed.limit(until)
    refused_early: OSError | None = None
    try:
        connection.request(method, target, body, dict(headers))
    except (BrokenPipeError, ConnectionResetError) as error:
        if body is None:
            raise
        refused_early = error  # a server that does not want a body says so and hangs up: hear it out
    timed.expect_within(answer_seconds)
    try:
        return connection.getresponse()
    except ConnectionError as error:
        raise error if refused_early is None else refused_early from None


class Answer:
    """The answer to a request, its body not yet read."""

    def __init__(self, response: http.client.HTTPResponse, connection: Connection) -> None:
        self.response = response
        self.status = response.status
        self._timed = connection.timed

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

    def begin_body(self) -> http.client.HTTPResponse:
        """Return the response for reading a body that may take as long as it makes progress."""
        if self._timed is not None:
            self._timed.expect_progress(STALL_SECONDS)
        return self.response


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message}); a private CA goes into NEURON_CACHE_CA_FILE"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return f"{type(error).__name__} {error}".strip()[:200]
