"""A worker whose libraries print: ``python -m tests.fakes.printing_worker SOCKET PARENT DIR``."""

import os
import socket
import sys

from neuron_backend.compilers import frames

sys.stdout.write("by sys.stdout\n")
sys.stdout.flush()
os.write(1, b"on descriptor 1\n")
os.write(2, b"on descriptor 2\n")
with socket.socket(fileno=int(sys.argv[1])) as connection:
    request, body = frames.receive(connection)
    frames.send(connection, {"ok": True, "request": request}, body[::-1])
    connection.recv(1)
