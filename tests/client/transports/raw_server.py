"""Small servers that do exactly what a test says, good or bad, on a socket of this machine."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Received:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class RawServer:
    """Answers each request with what ``script(request, connection)`` returns; None: the script did it all itself."""

    script: Callable[[Received, socket.socket], bytes | None]
    wrap: Callable[[socket.socket], socket.socket] = lambda sock: sock
    requests: list[Received] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(HANG_SECONDS)
            assert not thread.is_alive()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._open.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError, ValueError), plain:  # ValueError: a handshake where plain text was expected
            sock = self.wrap(plain)
            with sock, sock.makefile("rb") as reader:
                while (request := read_request(reader)) is not None:
                    self.requests.append(request)
                    answer = self.script(request, sock)
                    if answer is None:
                        return
                    sock.sendall(answer)


def read_request(reader: object) -> Received | None:
    line = reader.readline().decode()  # type: ignore[attr-defined]
    if not line.strip():
        return None
    method, target, _ = line.split()
    headers: dict[str, str] = {}
    while (header := reader.readline().decode().strip()) != "":  # type: ignore[attr-defined]
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", "0")))  # type: ignore[attr-defined]
    return Received(method, target, headers, body)


def answer(status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
