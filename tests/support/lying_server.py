"""Cache servers that lie: each answers one call of the protocol with what no honest server says, as fast as it can."""

from __future__ import annotations

import base64
import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import zstandard

from tests.client.programs import build, document, entry_of
from tests.client.transports.raw_server import answer
from tests.support.faulty_server import rightly

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from client.wire import Entry
    from tests.client.transports.raw_server import Received

    Script = Callable[[Received, socket.socket], bytes | None]

GIB = 1 << 30
HOLDER = {"host": "elsewhere", "pid": 1, "rank": None, "label": ""}
PROGRAMS = [document(f"program {number}") for number in range(3)]
NEFF = build(200_000)
_WAIT = {"state": "wait", "generation": 1, "holder": HOLDER, "since": "", "expires_in": 10.0}


def _entry(target: str, size: int | None = None, stored: int | None = None, *, encoding: str = "identity") -> Entry:
    """Return an entry of the key in ``target`` whose program claims these sizes, and an hour's compile."""
    key = target.split("/")[5]
    entry = entry_of(next(each for each in PROGRAMS if each.key == key), {"model.neff": NEFF})
    value = replace(entry, compile_seconds=3600.0).to_json()
    size = len(NEFF) if size is None else size
    value["outputs"][0].update(size=size, stored_size=size if stored is None else stored, encoding=encoding)
    return type(entry).from_json(value)


def _zeros(sock: socket.socket, head: bytes, size: float, piece: bytes = bytes(1 << 20)) -> None:
    sock.sendall(head)
    sent = 0
    while sent < size:
        sock.sendall(piece)
        sent += len(piece)


def _head(entry: Entry, **more: Any) -> bytes:
    lines = {"Neff-Entry": entry.to_header(), **more}
    return b"HTTP/1.1 200 x\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()


def _body_of(size: int) -> Callable[[Received, socket.socket], None]:
    def script(request: Received, sock: socket.socket) -> None:
        _zeros(sock, _head(_entry(request.target, size), **{"Content-Length": size}) + b"\r\n", size)

    return script


def _endless_chunks(request: Received, sock: socket.socket) -> None:
    head = _head(_entry(request.target), **{"Transfer-Encoding": "chunked"}) + b"\r\n"
    _zeros(sock, head, float("inf"), b"10000\r\n" + bytes(1 << 16) + b"\r\n")


def _endless_trailers(request: Received, sock: socket.socket) -> None:
    head = _head(_entry(request.target), **{"Transfer-Encoding": "chunked"}) + b"\r\n%x\r\n" % len(NEFF)
    _zeros(sock, head + NEFF + b"\r\n0\r\n", float("inf"), b"X-More: more\r\n" * 1000)


def _zstd(size: int, stored: int, packed: bytes, times: float = 1) -> Callable[[Received, socket.socket], None]:
    def script(request: Received, sock: socket.socket) -> None:
        entry = _entry(request.target, size, stored, encoding="zstd")
        sock.sendall(_head(entry, **{"Content-Encoding": "zstd", "Transfer-Encoding": "chunked"}) + b"\r\n")
        _zeros(sock, b"", times * len(packed), b"%x\r\n%b\r\n" % (len(packed), packed))
        sock.sendall(b"0\r\n\r\n")

    return script


def _bomb() -> bytes:
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(2048)) + packer.flush()


_EMPTY_BLOCKS = b"\x28\xb5\x2f\xfd\x00\x58" + b"\0\0\0" * 20_000
"""The beginning of a zstd frame of raw blocks, each of which holds nothing."""


def _drip(request: Received, sock: socket.socket) -> None:
    sock.sendall(_head(_entry(request.target), **{"Content-Length": len(NEFF)}) + b"\r\n")
    sock.settimeout(2)
    for _ in range(100):
        sock.sendall(b"x")
        with suppress(TimeoutError):
            if not sock.recv(1):
                return


def _silent(request: Received, sock: socket.socket) -> None:
    sock.recv(1)  # until the caller has had enough


def _frozen(request: Received, sock: socket.socket) -> bytes | None:
    """Answer what the database alone can, which holds nothing yet."""
    return rightly({})(request, sock) if "/artifacts/" in request.target else _silent(request, sock)


def _in_time(request: Received, sock: socket.socket) -> bytes:
    """Lead in a circle, each answer at the last moment."""
    time.sleep(4.5)
    return answer(307, Location=f"{request.target}?")


def _json(value: Any) -> Callable[..., bytes]:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return lambda *_: answer(200, raw, Content_Type="application/json")


def _waiting(**more: Any) -> Callable[..., bytes]:
    return _json({**_WAIT, **more})


def _backward() -> Callable[..., bytes]:
    generations = iter(range(1000, 0, -1))
    return lambda *_: _waiting(generation=next(generations), expires_in=0)()


def _failed(expires_in: float) -> Callable[..., bytes]:
    return _json({"state": "failed", "class": "resource", "text": "no", "log": "", "expires_in": expires_in})


def _granted(**more: Any) -> Callable[..., bytes]:
    return _json({"state": "granted", "token": "t", "generation": 1, "ttl_seconds": 30, **more})


def _endless_headers(request: Received, sock: socket.socket) -> None:
    _zeros(sock, b"HTTP/1.1 200 x\r\n", float("inf"), b"X-More: more\r\n" * 1000)


def _endless_promises(request: Received, sock: socket.socket) -> None:
    _zeros(sock, b"", float("inf"), b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def _deep_header(request: Received, sock: socket.socket) -> bytes:
    return answer(200, NEFF, Neff_Entry=base64.urlsafe_b64encode(b"[" * 40_000).decode())


_REVOKED = {"kind": "graph", "key": "0" * 64, "sha256": "1" * 64, "time": "2026-11-29T23:00:00Z"}


def _many(count: int) -> bytes:
    return json.dumps({"revoked": [{**_REVOKED, "key": f"{number:064x}"} for number in range(count)]}).encode()


FETCH: dict[str, Callable[[], Script]] = {
    "a body of 5 GiB": lambda: _body_of(5 * GIB),
    "a body of 15 GiB, by its word": lambda: _body_of(15 * GIB),
    "chunks without end": lambda: _endless_chunks,
    "trailers without end": lambda: _endless_trailers,
    "a zstd bomb": lambda: _zstd(1000, 900, _bomb()),
    "a zstd bomb of the size it says": lambda: _zstd(15 * GIB, len(_bomb()), _bomb()),
    "zstd blocks of nothing without end": lambda: _zstd(len(NEFF), 1 << 50, _EMPTY_BLOCKS, float("inf")),
    "a byte now and then": lambda: _drip,
    "no answer": lambda: _silent,
    "a circle of redirects, each in time": lambda: _in_time,
    "headers without end": lambda: _endless_headers,
    "promises without end": lambda: _endless_promises,
    "an entry 40,000 levels deep": lambda: _deep_header,
}
LEASE: dict[str, Callable[[], Script]] = {
    "no answer to a lease": lambda: _silent,
    "wait, for nobody": lambda: _waiting(holder={**HOLDER, "host": ""}),
    "wait, for a lease that is over": lambda: _waiting(expires_in=0),
    "wait, for 30 million years": lambda: _waiting(expires_in=1e15),
    "wait, generations going backward": _backward,
    "wait, until NaN": lambda: _waiting(expires_in=float("nan")),
    "wait, until 1e400": lambda: _json(json.dumps(_WAIT).replace("10.0", "1e400").encode()),
    "wait, of generation -1": lambda: _waiting(generation=-1),
    "wait, of generation '7'": lambda: _waiting(generation="7"),
    "failed, for 9e15 s": lambda: _failed(9e15),
    "failed, for 60 s": lambda: _failed(60.0),
    "granted, to be renewed never": lambda: _granted(ttl_seconds=9e15),
    "a JSON of 100 MB": lambda: _json(b'{"a":"' + b"x" * 100_000_000 + b'"}'),
    "a JSON of 15 MB of lists": lambda: _json(b"[" + b"[]," * 5_000_000 + b"0]"),
    "a JSON 100,000 levels deep": lambda: _json(b"[" * 100_000),
    "busy, for a year": lambda: lambda *_: answer(503, b"{}", Retry_After="31536000"),
}
REVOKED: dict[str, Callable[[], Script]] = {
    "90,000 withdrawn entries": lambda: _json(_many(90_000)),
    "withdrawn entries without end": lambda: _endless_headers,
}
STORE: dict[str, Callable[[], Script]] = {
    "a store that stands still behind it": lambda: _frozen,
}
LIES = {
    **{name: ("artifacts", make) for name, make in FETCH.items()},
    **{name: ("leases", make) for name, make in LEASE.items()},
    **{name: ("revoked", make) for name, make in REVOKED.items()},
    **{name: ("graph", make) for name, make in STORE.items()},
}


def lying(name: str) -> Script:
    """Return the script of the server that tells the lie ``name``; everything else it answers rightly."""
    what, make = LIES[name]
    lie, honest = make(), rightly({})

    def script(request: Received, sock: socket.socket) -> bytes | None:
        if f"/{what}" in request.target and not (what == "leases" and request.target.endswith("/release")):
            return lie(request, sock)
        return honest(request, sock)

    return script
