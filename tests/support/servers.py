"""Start and stop the real cache server as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass
class Server:
    """A running ``neff-cache serve``. ``data`` is its data folder, ``config`` holds the user's token."""

    url: str
    data: Path
    config: Path
    process: subprocess.Popen[str]

    @property
    def token(self) -> str:
        return (self.config / "neff-cache" / "token").read_text().strip()

    def get(self, path: str, body: Any = None) -> Any:
        """Return the JSON that a GET (or, with a body, a POST) of ``path`` answers."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
            return json.load(answer)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the server and return its status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=HANG_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


@contextmanager
def running_server(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Run ``neff-cache serve`` on a free port with its data below ``folder``; it is gone afterwards."""
    config = folder / "config"
    process = subprocess.Popen(
        [sys.executable, "-m", "client.cli", "serve", "--port", "0", "--data-dir", str(folder / "data"), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CONFIG_HOME": str(config), "NEFF_CACHE_ACCESS_LOG": "false", **(environment or {})},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    url = next((word for word in line.split() if word.startswith(("http://", "https://"))), None)
    server = Server(url or "", folder / "data", config, process)
    try:
        assert url is not None, f"the server did not start: {line!r}"
        yield server
    finally:
        server.stop()
