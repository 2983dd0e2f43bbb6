"""A server that starts before its database and its store: it says so, and serves once they are there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.postgres import postgres
from tests.support.s3 import seaweedfs, use_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.once

_LONG = 120.0
"""Seconds, for hangs only: beside other work a start takes what it takes."""


class Later:
    """A port at which nothing listens until `start`, and then what listens at ``target``."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._run(self._accept, self._listener)

    def _run(self, work: Callable[..., None], *args: socket.socket) -> None:
        self._sockets.extend(args)
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(self._target)
                for one, other in ((near, far), (far, near)):
                    self._run(self._copy, one, other)

    @staticmethod
    def _copy(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(HANG_SECONDS)
        for each in self._sockets:
            each.close()


class Started:
    """``neff-cache serve`` on a port known beforehand, whatever it waits for."""

    def __init__(self, folder: Path, **settings: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._log = folder / "log"
        variables = {f"NEFF_CACHE_{name.upper()}": value for name, value in settings.items()}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "client.cli", "serve", "--port", str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "NEFF_CACHE_LOG_FORMAT": "json"}
                | {"NEFF_CACHE_DATA_DIR": str(folder / "data"), **variables},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ask(self, path: str) -> tuple[int, dict[str, str]]:
        """Return status and headers; status 0: nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=HANG_SECONDS) as answer:
                return answer.status, {name.lower(): value for name, value in answer.headers.items()}
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {name.lower(): value for name, value in error.headers.items()}
        except OSError:
            return 0, {}

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(HANG_SECONDS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    made: list[Started] = []

    def new(**settings: str) -> Started:
        made.append(Started(tmp_path, **settings))
        return made[-1]

    yield new
    for started in made:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait(HANG_SECONDS)


@pytest.fixture
def database() -> Iterator[tuple[Later, str]]:
    with postgres().new_database() as url:
        found = make_url(url)
        later = Later((found.host or "", found.port or 0))
        yield later, found.set(port=later.port).render_as_string()
        later.close()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Later, str]]:
    use_credentials(monkeypatch)
    url = seaweedfs().new_url()
    place = urlsplit(seaweedfs().endpoint)
    later = Later((place.hostname or "", place.port or 0))
    yield later, url.replace(seaweedfs().endpoint, f"http://127.0.0.1:{later.port}")
    later.close()


def _waits(server: Started) -> None:
    """See that the server lives, and is ready for nothing."""
    wait_until(lambda: server.ask("/healthz")[0] == 200, "a server that listens", _LONG)
    assert server.ask("/readyz")[0] == 503
    for path in ("/", "/v1/default/graph/artifacts/" + "a" * 64, "/metrics"):
        status, headers = server.ask(path)
        assert (status, headers["retry-after"]) == (503, "5")
        assert headers["content-type"] == "application/problem+json"


def test_a_server_waits_for_database_and_bucket_and_serves_when_both_are_there(
    start: Callable[..., Started], database: tuple[Later, str], bucket: tuple[Later, str]
) -> None:
    """Compose without ``depends_on``: the order in which three containers start is nobody's concern."""
    server = start(database=database[1], store=bucket[1])
    _waits(server)
    wait_until(lambda: "not serving yet" in server.log, "a line in the log", _LONG)
    assert "the database cannot be used" in server.log
    database[0].start()
    wait_until(lambda: "the bucket" in server.log, "a line about the bucket", _LONG)
    _waits(server)
    bucket[0].start()
    wait_until(lambda: server.ask("/readyz")[0] == 200, "a server that is ready", _LONG)
    assert server.ask("/v1/default/graph/artifacts/" + "a" * 64)[0] == 401
    assert f"neff-cache: serving http://127.0.0.1:{server.port}" in server.log
    line = next(json.loads(line) for line in server.log.splitlines() if "not serving yet" in line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", line["since"])
    assert server.end() == 0
    assert "Traceback" not in server.log


def test_a_stop_while_it_waits_is_a_stop(start: Callable[..., Started], database: tuple[Later, str]) -> None:
    server = start(database=database[1])
    _waits(server)
    assert server.end() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize(
    "wrong", ["no such database", "no such bucket", "a folder that is a file", "a folder of somebody else's"]
)
def test_what_an_operator_must_mend_ends_the_start_with_one_sentence(
    start: Callable[..., Started], database: tuple[Later, str], bucket: tuple[Later, str], tmp_path: Path, wrong: str
) -> None:
    for later, _ in (database, bucket):
        later.start()
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "holiday.jpg").write_text("")
    given = {
        "no such database": {"database": make_url(database[1]).set(database="none").render_as_string()},
        "no such bucket": {"store": bucket[1].replace("s3://neffs", "s3://no-such-bucket")},
        "a folder that is a file": {"store": str(tmp_path / "file" / "store")},
        "a folder of somebody else's": {"store": str(tmp_path / "other")},
    }[wrong]
    server = start(**given)
    assert server.process.wait(_LONG) == 1
    (sentence,) = [line for line in server.log.splitlines() if line.startswith("neff-cache: ")]
    assert "; see --" in sentence
    assert "not serving yet" not in server.log
