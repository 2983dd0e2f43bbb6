"""The real nginx in front of a server, as an unprivileged process with everything it writes below one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PLACES = "/usr/sbin:/usr/local/sbin:/sbin"
_START_SECONDS = HANG_SECONDS
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def nginx_program() -> str:
    """Return the program's path; skips the test where it is not installed."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:{_PLACES}")
    if found is None:
        pytest.skip("nginx is not installed here (Debian: apt-get install nginx-light; .ci/run installs it)")
    return found


@contextlib.contextmanager
def running_nginx(folder: Path, upstream: str, *, http: str = "", location: str = "") -> Iterator[str]:
    """Run nginx before the server at the URL ``upstream``, and give its own URL.

    ``http`` and ``location``: directives for those blocks, such as a ``proxy_cache_path`` and a ``proxy_cache``. Host
    and Authorization reach the server as the caller sent them. Raises RuntimeError with nginx's own words if it does
    not start.
    """
    program = nginx_program()
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    temporary = "\n".join(f"  {name}_temp_path {folder}/{name};" for name in _TEMPORARY)
    config = folder / "nginx.conf"
    config.write_text(
        f"""
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
{"user root;" if os.geteuid() == 0 else ""}
events {{ worker_connections 256; }}
http {{
{temporary}
  access_log off;
  {http}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass {upstream};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      {location}
    }}
  }}
}}
"""
    )
    with (folder / "nginx.log").open("w+") as log:
        command = [program, "-p", str(folder), "-c", str(config), "-e", "stderr"]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for(process, port, folder / "nginx.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()  # the master ends its workers
            process.wait(timeout=_START_SECONDS)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)  # nginx has no event for tests
    raise RuntimeError(f"nginx did not start: {log.read_text()}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
