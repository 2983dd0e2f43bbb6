"""Messages between the CPU compiler and its workers: a JSON header and a body of bytes, each with its length."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

_LENGTHS = struct.Struct(">IQ")


def send(connection: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Send one message; raises OSError (TimeoutError among them) if the other side is gone or does not read."""
    text = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(body)) + text)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return the next message; raises EOFError if the other side is gone, TimeoutError if it says nothing in time."""
    header_size, body_size = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    header = json.loads(_exactly(connection, header_size))
    return header, bytes(_exactly(connection, body_size))


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("the other side closed the connection")
        view = view[count:]
    return data
