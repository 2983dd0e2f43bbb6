"""HTTP/1.1 as uvicorn speaks it, with bounds on what a peer can make the server wait for or hold in memory.

uvicorn leaves these to a proxy in front of it; this server is often reached without one. Bodies have bounds of their
own, where they are received: here it is heads, trailers, chunk extensions, and bodies that nobody wants any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cache_server.services.certificates import PeerCertificate

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

MAX_HEAD = 64 * 1024
"""Bytes of a head, or of whatever else comes between two pieces of a body."""

MAX_UNWANTED = 16 << 20
"""Bytes of a body that are still read after its answer: cut off at once, many clients would never see the answer."""


GRACE_SECONDS = 1.0
"""How long a server that stops waits for the request of a connection that has not brought one yet."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A head has ``head_seconds`` to arrive whole, the rest of an unwanted body the same."""

    head_seconds = 30.0

    @classmethod
    def within(cls, head_seconds: float) -> type[BoundedProtocol]:
        """Return the protocol with another time limit."""
        return type("BoundedProtocol", (cls,), {"head_seconds": head_seconds})

    _shutdown_timer: asyncio.TimerHandle | None = None
    _deadline: asyncio.TimerHandle | None = None
    _in_head = False
    _between = 0
    _unwanted = 0
    _certificate: PeerCertificate | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn itself does
        """Begin to wait for the first head."""
        super().connection_made(transport)
        found = transport.get_extra_info("peercert")
        if found:
            self._certificate = PeerCertificate.from_peer(found)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        if self._shutdown_timer is not None:
            self._shutdown_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close, for the server stops, once nothing is on its way: an answer, or a request that was just sent."""
        # uvicorn types it as if there were always one
        is_new = cast("RequestResponseCycle | None", self.cycle) is None
        if not is_new and not self._in_head:
            super().shutdown()
        elif self._shutdown_timer is None:
            # whoever connected a moment ago, or is in the middle of a head, is answered: `cache_server.gate` then has
            # the connection closed
            self._shutdown_timer = self.loop.call_later(GRACE_SECONDS, self._shut)

    def _shut(self) -> None:
        self._in_head = False
        if not self.transport.is_closing():
            # with an answer still to come, this leaves it to the end of that
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless it is too much."""
        self._between += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._between > MAX_HEAD:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._in_head:
            self._wait()
        elif self._is_answered():
            # blank lines before a head, or the rest of a body that nobody wants
            self._wait()
            self._unwanted += len(data)
            if self._unwanted > MAX_UNWANTED:
                self.transport.close()

    def _is_answered(self) -> bool:
        # uvicorn types it as if there were always one
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def on_message_begin(self) -> None:
        """Take note of a new head."""
        self._in_head = True
        self._unwanted = 0
        super().on_message_begin()
        # for `cache_server.gate`, where an answer has begun and cannot be ended
        self.scope["abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        if self._certificate is not None:
            # read by `cache_server.gate`; nothing that a request says can put it there
            self.scope["client_certificate"] = self._certificate  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """Take note of its end."""
        self._in_head = False
        self._between = 0
        self._stop_waiting()
        if not self.url.startswith(b"/"):
            # read by `cache_server.gate`: the host that a request for a whole address names
            authority = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            self.scope["target_host"] = authority.decode("latin-1")  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take note of progress."""
        self._between = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take note of the end of a request."""
        self._between = 0
        self._stop_waiting()
        super().on_message_complete()

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._waited)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _waited(self) -> None:
        self._deadline = None
        if not self._is_answered():
            # while an earlier request is in work, nothing is read: that time is not the peer's
            self._wait()
        elif self._in_head:
            self._refuse(b"408 Request Timeout")
        elif not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(b"400 Bad Request", msg.encode("ascii"))

    def _refuse(self, status: bytes, body: bytes = b"") -> None:
        """Answer in the protocol's own words: there is no request yet that the application could answer."""
        if not self.transport.is_closing():
            if self._is_answered():
                head = b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\ncache-control: no-store\r\n\r\n"
                self.transport.write(head % (status, len(body)) + body)
            self.transport.close()
