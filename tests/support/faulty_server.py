"""A cache server that answers one job rightly, and another beside it that does one thing wrong."""

from __future__ import annotations

import json
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.client.transports.raw_server import RawServer, answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.wire import Entry
    from tests.client.transports.raw_server import Received

STATUSES = (401, 403, 404, 409, 412, 429, 500, 502, 503, 504)
PLACES = ("refused", "no such host", "black hole")
BODIES = ("reset in mid-body", "wrong bytes", "wrong length", "1 kB/s")
FAULTS = (*PLACES, *BODIES, *map(str, STATUSES))
_RESET = b"\1\0\0\0\0\0\0\0"  # SO_LINGER on, for 0 s


def rightly(stored: dict[str, tuple[Entry, bytes]]) -> Callable[[Received, socket.socket], bytes]:
    """Return a script that answers as a cache server does which holds ``stored`` by key."""

    def script(request: Received, _: socket.socket) -> bytes:  # noqa: PLR0911 - one for each call
        what, name = request.target.split("/")[-2:]
        if name == "revoked":
            return _json({"revoked": []})
        if what == "leases":
            return _json({"state": "granted", "token": "t", "generation": 1, "ttl_seconds": 30})
        if what == "blobs":
            return _json({"stored_size": len(request.body)}, 201)
        if request.method == "PUT":
            return answer(201, request.body, Content_Type="application/json")
        if name in {"release", "reports"}:
            return answer(204)
        if what == "artifacts" and name in stored:
            entry, neff = stored[name]
            return answer(200, neff, Neff_Entry=entry.to_header() or "")
        return _problem(404)

    return script


def wrongly(
    fault: str, script: Callable[[Received, socket.socket], bytes]
) -> Callable[[Received, socket.socket], bytes | None]:
    """Return ``script`` with a fault in all its answers."""

    def faulty(request: Received, sock: socket.socket) -> bytes | None:
        if fault.isdigit():
            return _problem(int(fault))
        head, _, body = script(request, sock).partition(b"\r\n\r\n")
        body = body or b"{}"
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        length = len(body) + (7 if fault == "wrong length" else 0)
        head = b"\r\n".join([*lines, b"Content-Length: %d" % length, b"", b""])
        if fault == "wrong bytes":
            return head + bytes(255 - byte for byte in body)
        if fault == "wrong length":
            return head + body + b"surplus"
        if fault == "reset in mid-body":
            sock.sendall(head + body[: len(body) // 2])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            return None
        whole = head + body
        for start in range(0, len(whole), 100):
            sock.sendall(whole[start : start + 100])
            time.sleep(0.1)
        return None

    return faulty


@contextmanager
def faulty_url(fault: str, script: Callable[[Received, socket.socket], bytes]) -> Iterator[str]:
    """Give the address of a server with a fault."""
    if fault == "refused":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    elif fault == "no such host":
        yield "http://no-such-host.invalid:8080"
    elif fault == "black hole":
        # nobody accepts, and once the queue is full the kernel drops what comes
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
            callers = [socket.socket() for _ in range(3)]
            for caller in callers:
                caller.setblocking(False)  # noqa: FBT003 - its signature
                caller.connect_ex(listener.getsockname())
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            for caller in callers:
                caller.close()
    else:
        with RawServer(wrongly(fault, script)) as server:
            yield server.url


def _json(value: Any, status: int = 200) -> bytes:
    return answer(status, json.dumps(value).encode(), Content_Type="application/json")


def _problem(status: int) -> bytes:
    names = {409: "conflict", 412: "precondition_failed", 429: "throttled"}
    body = json.dumps({"name": names.get(status, "not_found" if status == 404 else "no"), "status": status}).encode()
    return answer(status, body, Content_Type="application/problem+json")
