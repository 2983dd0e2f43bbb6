"""Small answers on plain ASGI, for the routes that do not go through FastAPI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from cache_server.errors import PROBLEM_JSON, Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from starlette.types import Message, Receive, Send
    from starlette.types import Scope as AsgiScope

SLOWEST = 1024
"""Bytes per second."""

_Result = TypeVar("_Result")

Headers: TypeAlias = "list[tuple[bytes, bytes]]"


def header(scope: AsgiScope, name: bytes) -> str | None:
    """Return a request header (``name`` in lower case), several of one name joined by commas, or None."""
    found = [value for key, value in scope["headers"] if key == name]
    return b", ".join(found).decode("latin-1") if found else None


def encode_headers(headers: Mapping[str, str]) -> Headers:
    """Return headers as ASGI takes them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


class Incoming:
    """A request's body on its way in, as long as it makes progress.

    A sender that lets a byte trickle in now and then holds a connection as well as one that stands still: after
    ``idle_seconds`` of waiting, the body must have come at `SLOWEST` on average. Time that we take ourselves, because
    the store is slow, is not held against the sender.
    """

    def __init__(
        self, receive: Receive, idle_seconds: float, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._receive = receive
        self._idle_seconds = idle_seconds
        self._monotonic = monotonic
        self._waited = 0.0
        self._size = 0

    async def next(self) -> Message:
        """Return the next piece; raises `Problem` if there is none for too long, never, or too little."""
        begin = self._monotonic()
        try:
            async with asyncio.timeout(self._idle_seconds):
                message = await self._receive()
        except TimeoutError:
            raise Problem("upload_timeout") from None
        if message["type"] == "http.disconnect":
            raise Problem("short_body")
        self._waited += self._monotonic() - begin
        self._size += len(message.get("body", b""))
        if self._waited > self._idle_seconds and self._size < SLOWEST * self._waited:
            raise Problem("upload_timeout")
        return message


@contextlib.asynccontextmanager
async def watching(receive: Receive) -> AsyncIterator[asyncio.Future[None]]:
    """Give a future that is done once the caller is gone. The request's body must have been received."""
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        yield gone
    finally:
        gone.cancel()


async def unless_gone(receive: Receive, work: asyncio.Task[_Result]) -> _Result:
    """Return what ``work`` returns; raises `Problem` ``short_body`` once the caller is gone, whatever it does then."""
    async with watching(receive) as gone:
        either: set[asyncio.Future[Any]] = {work, gone}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Problem("short_body", "the caller has gone")
    return await work


def stop_if_gone(gone: asyncio.Future[None]) -> Callable[[int], None]:
    """Return what a worker thread calls between two pieces of slow work: it raises once the caller is gone."""

    def look(_size: int) -> None:
        if gone.done():
            raise Problem("short_body", "the caller has gone")

    return look


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_body(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, value: Any) -> None:
    """Send JSON."""
    body = json.dumps(value, separators=(",", ":")).encode()
    await send_body(send, status, [(b"content-type", b"application/json")], body)


async def send_problem(send: Send, problem: Problem, request_id: str, *, method: str = "GET") -> None:
    """Send an error by the table in `cache_server.errors`."""
    body = json.dumps(problem.to_json(request_id)).encode()
    headers = [(b"content-type", PROBLEM_JSON.encode()), *encode_headers(problem.headers)]
    if method == "HEAD":
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": problem.kind.status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send_body(send, problem.kind.status, headers, body)
