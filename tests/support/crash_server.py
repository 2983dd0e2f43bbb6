"""A real server that kills itself, by SIGKILL, before the n-th call that changes something on disk or answers somebody.

Run as ``python -m tests.support.crash_server``: it imports everything once, then forks a server for each JSON line on
its standard input, because a fork is forty times as fast as a start of Python. The product knows nothing of this.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from cache_server import app, serve  # noqa: F401 - imported before the fork
from cache_server.settings import Settings


class CrashPoints:
    """Counts calls once ``arm`` exists; the ``last``-th of them is never made."""

    def __init__(self, arm: Path, names: Path, last: int) -> None:
        self._arm = arm
        self._names = names
        self._last = last
        self._count = 0
        self._lock = threading.Lock()

    def reach(self, name: str) -> None:
        with self._lock:
            if not self._arm.exists():
                return
            self._count += 1
            with self._names.open("a") as file:
                file.write(f"{name}\n")
            if self._count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: Any, attribute: str) -> None:
        real = getattr(owner, attribute)

        def call(*arguments: Any, **options: Any) -> Any:
            if attribute != "open" or arguments[1] & os.O_CREAT:
                self.reach(attribute)
            return real(*arguments, **options)

        setattr(owner, attribute, call)

    def install(self) -> None:
        for name in ("link", "unlink", "fsync", "mkdir", "rmdir", "utime", "write", "open"):
            self.before(os, name)
        event.listen(Engine, "commit", lambda _connection: self.reach("commit"))
        # the answer: what was done is durable, and nobody is told
        self.before(RequestResponseCycle, "send")


def _serve(order: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    CrashPoints(Path(order["arm"]), Path(order["names"]), order["last"]).install()
    os._exit(serve.run(Settings(port=0, data_dir=Path(order["data"]), **order["settings"])))


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _serve(json.loads(line))
        print(child, flush=True)  # noqa: T201 - the answer to the order


if __name__ == "__main__":
    main()
