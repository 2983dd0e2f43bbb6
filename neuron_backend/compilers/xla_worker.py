"""A worker process of the CPU compiler: ``python -m MODULE SOCKET PARENT THREADS IDLE DIR``.

Takes one request after the other from the inherited socket with descriptor SOCKET. Its standard output and error are a
log file, so nothing that a library prints can get between the answers. It ends when PARENT is gone, and by itself
after IDLE seconds without work; it then removes DIR, its private directory.

It has PyTorch nowhere: a worker costs 0.3 s and 170 MB.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from client.errors import ConfigurationError
from neuron_backend.compilers import frames
from neuron_backend.runtimes.xla_client import XlaClient, XlaError

_WATCH_SECONDS = 0.5


def _watch(parent: int, directory: str) -> None:
    """End this process once its parent is gone, also in the middle of a compile.

    The socket alone does not show it: a child that the parent forked holds a copy of the other end. The kernel's
    parent-death signal would not do: it comes when the thread ends that started us.
    """
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _reset_peak() -> None:
    """Have the kernel measure this process's resident peak anew (proc(5), clear_refs); not allowed everywhere."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_bytes() -> int | None:
    """Return the resident peak since `_reset_peak`.

    Not ``ru_maxrss``: that never falls, and after vfork and exec it begins at the peak of the parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


class _Worker:
    """Answers requests; makes the XLA client at the first one, so that whatever is wrong with it becomes an answer."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._client: XlaClient | None = None

    def answer(self, request: dict[str, Any], code: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the answer to one request; never raises for what the request or the host does."""
        try:
            if self._client is None:
                self._client = XlaClient(self._threads)
            if request["do"] == "identify":
                return {"ok": True, "version": self._client.version, "target": self._client.target}, b""
            _reset_peak()
            start = time.perf_counter()
            executable = self._client.compile(code)
            seconds = time.perf_counter() - start
        except ConfigurationError as error:
            return {"ok": False, "class": "configuration", "text": str(error)}, b""
        except XlaError as error:
            return {"ok": False, "class": "resource" if error.exhausted else "diagnosis", "text": str(error)}, b""
        except MemoryError:
            return {"ok": False, "class": "resource", "text": "out of memory"}, b""
        except Exception:  # noqa: BLE001 - the boundary of this process: the caller gets the traceback
            return {"ok": False, "class": "transient", "text": traceback.format_exc()}, b""
        return {"ok": True, "seconds": seconds, "peak_memory_bytes": _peak_bytes()}, executable


def main(arguments: list[str]) -> int:
    """Serve until the parent is gone or nothing was asked for a while."""
    descriptor, parent, threads = (int(argument) for argument in arguments[:3])
    idle, directory = float(arguments[3]), arguments[4]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it kills what it interrupts
    threading.Thread(target=_watch, args=(parent, directory), daemon=True).start()
    worker = _Worker(threads)
    with socket.socket(fileno=descriptor) as connection:
        try:
            while True:
                connection.settimeout(idle)
                request, code = frames.receive(connection)
                connection.settimeout(None)
                frames.send(connection, *worker.answer(request, code))
        except (EOFError, TimeoutError, ConnectionError):
            shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
