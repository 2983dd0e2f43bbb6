"""Renews leases from a process of its own: a C call that keeps the interpreter's lock stops every thread of a job.

Threads that compute in Python delay ours by some 0.2 s; a regular expression that backtracks, or a library's call that
does not release the lock, by as long as it takes (docs/decisions/0012). Then the lease of a healthy job would run out,
and a second compile would start. So beside a compile that takes longer than a moment runs `client.renewing` as a
script: it reads leases on its standard input, renews them, and says on its standard output which are lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.names import Kind
    from client.wire import Granted

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "renewing.py")  # noqa: PTH100, PTH118, PTH120 - pathlib costs
_END_SECONDS = 2.0
_CHUNK = 65536


class Renewer:
    """The process that renews leases of one project at the server ``url``; started when it is first needed.

    Safe to use from several threads; `forget` it after a fork. No method raises: without the process, threads do.
    """

    def __init__(self, url: str, project: str, environ: Mapping[str, str]) -> None:
        self._start = {"url": url, "project": project, "environ": dict(environ), "parent": os.getpid()}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._tail = b""
        self._number = 0
        self._lost: set[int] = set()

    def keep(self, kind: Kind, key: str, lease: Granted, seconds: float) -> int | None:
        """Have a lease renewed for up to ``seconds``; return the number to ask and stop it by, None if that fails."""
        with self._lock:
            self._number += 1
            asked = {
                "keep": self._number,
                "kind": kind.value,
                "key": key,
                "token": lease.token,
                "generation": lease.generation,
                "ttl_seconds": lease.ttl_seconds,
                "seconds": seconds,
            }
            try:
                self._send(self._running(), asked)
            except (OSError, ValueError):
                return None
            return self._number

    def keeps(self, number: int) -> bool:
        """Return whether the process still runs, and has not said that this lease is lost."""
        with self._lock:
            self._read()
            return self._process is not None and self._process.poll() is None and number not in self._lost

    def has_lost(self, number: int) -> bool:
        """Return whether the process has said that this lease is lost."""
        with self._lock:
            self._read()
            return number in self._lost

    def stop(self, number: int) -> None:
        """Renew a lease no more."""
        with self._lock, suppress(OSError, ValueError):
            if self._process is not None:
                self._send(self._process, {"stop": number})

    def close(self) -> None:
        """End the process; it may be started again."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def forget(self) -> None:
        """In a forked child: the process is the parent's, and this copy of its object must not complain of that."""
        if self._process is not None:
            self._process.returncode = 0

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        process = self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # an interrupt at the terminal is not meant for it
        )
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        self._tail = b""
        self._send(process, self._start)
        return process

    def _send(self, process: subprocess.Popen[bytes], value: Mapping[str, Any]) -> None:
        if process.stdin is not None:
            process.stdin.write(json.dumps(value).encode() + b"\n")
            process.stdin.flush()

    def _read(self) -> None:
        """Take in what the process has said, without waiting for more."""
        if self._process is None or self._process.stdout is None:
            return
        with suppress(OSError):
            while piece := os.read(self._process.stdout.fileno(), _CHUNK):
                *lines, self._tail = (self._tail + piece).split(b"\n")
                self._lost.update(json.loads(line)["lost"] for line in lines)
