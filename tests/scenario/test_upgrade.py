"""A rolling upgrade under load: the schema first, then one server after the other, and no client sees an error.

The version that is upgraded to is a copy of this one with one migration more, of the kind that migrations/README.md
allows: so the test needs no other release at hand. `rolling_upgrade` takes any two source trees.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.balancer import balanced
from tests.support.http_calls import Caller
from tests.support.postgres import postgres
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cache_server.harness import Built
    from tests.support.servers import Server

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 3
LATER = '''"""Later: what an expanding migration of a next version does to tables in use."""

import sqlalchemy as sa
from alembic import op

revision = "29991231_0001"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table("later", sa.Column("id", sa.Integer(), primary_key=True), sa.Column("text", sa.Text()))
    for table in ("entries", "leases", "tokens"):
        op.add_column(table, sa.Column("later", sa.Float(), server_default="0", nullable=False))
    op.create_index("ix_entries_later", "entries", ["project", "later"])
'''


@dataclass
class Load:
    """Clients that publish, read, and take leases, each request on a connection of its own through the balancer."""

    url: str
    token: str
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    published: list[Built] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        caller = Caller(self.url, self.token, timeout=HANG_SECONDS)
        while not self.stop.is_set():
            built = build(f"upgrade-{next(self.numbers)}", os.urandom(20_000))
            holder = {"holder": {"host": "h", "pid": 1}, "wait_seconds": 1}
            granted = self._see(caller, "lease", "POST", built.lease, holder, 200)
            self._see(caller, "heartbeat", "PATCH", built.lease, {"token": granted.get("token", "")}, 200)
            for output in built.entry.outputs:
                self._see(caller, "upload", "PUT", built.blob(output.name), built.stored[output.name], 201)
            self._see(caller, "publish", "PUT", built.path, built.entry.to_json(), 201)
            self._see(caller, "read", "GET", built.artifact, None, 200)
            self.published.append(built)

    def _see(self, caller: Caller, what: str, method: str, path: str, body: object, wanted: int) -> dict[str, object]:
        answer = caller.call(method, path, body)
        self.outcomes[what] += 1
        if answer.status != wanted:
            self.errors.append(f"{what}: {answer.status} {answer.name}")
        return answer.json()

    def go_on(self) -> None:
        """Return once every client has done some rounds more."""
        target = len(self.published) + CLIENTS
        wait_until(lambda: len(self.published) >= target or self.errors, "the load goes on", 90)


@contextmanager
def _server(folder: Path, code: Path, port: int, *arguments: str) -> Iterator[Server]:
    environment = {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1", "NEFF_CACHE_COLLECT_SECONDS": "1"}
    with running_server(folder, *arguments, "--port", str(port), environment=environment) as server:
        yield server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rolling_upgrade(old: Path, new: Path, folder: Path, bucket: str, database: str) -> tuple[Load, dict[str, str]]:
    """Upgrade two servers from the source tree ``old`` to ``new`` under load; return it and the steps' figures."""
    arguments = ("--store", bucket, "--database", database)
    ports = [_free_port(), _free_port()]
    figures: dict[str, str] = {}
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(folder, old, port, *arguments)) for port in ports]
        balancer = stack.enter_context(balanced([server.url for server in servers]))
        load = Load(balancer.url, servers[0].token)
        threads = [threading.Thread(target=load.run) for _ in range(CLIENTS)]
        stack.callback(lambda: [thread.join(90) for thread in threads])
        stack.callback(load.stop.set)
        for thread in threads:
            thread.start()
        load.go_on()

        begin = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(new), "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-m", "client.cli", "admin", "migrate", "--json", "--database", database]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        moved = json.loads(done.stdout)
        assert moved["before"] != moved["after"]
        figures["migrate"] = f"{moved['before']} -> {moved['after']} in {time.monotonic() - begin:.1f} s"

        # servers of the version before go on with the new schema for as long as it takes
        load.go_on()
        for server in servers:
            assert Caller(server.url, server.token).call("GET", "/readyz").status == 200

        for number, (server, port) in enumerate(zip(servers, ports, strict=True)):
            before, begin = len(load.published), time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(90) == 0
            again = stack.enter_context(_server(folder, new, port, *arguments))
            wait_until(
                lambda again=again: Caller(again.url, again.token).call("GET", "/readyz").status == 200,
                "ready",
            )
            load.go_on()
            seconds = time.monotonic() - begin
            figures[f"server {number}"] = f"{seconds:.1f} s, {len(load.published) - before} entries published meanwhile"
        load.stop.set()
        for thread in threads:
            thread.join(90)
        caller = Caller(servers[0].url, servers[0].token)
        for built in load.published:
            assert caller.call("GET", built.artifact).body == built.stored["model.neff"]
    return load, figures


@pytest.mark.timeout(300)
@pytest.mark.soak
def test_a_rolling_upgrade_under_load_shows_no_client_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch)
    new = tmp_path / "new"
    for name in ("client", "cache_server", "migrations"):
        shutil.copytree(ROOT / name, new / name, ignore=shutil.ignore_patterns("__pycache__"))
    head = max(path.stem[:13] for path in (ROOT / "migrations" / "versions").glob("*.py"))
    (new / "migrations" / "versions" / "29991231_0001_later.py").write_text(LATER.format(head=head))
    with postgres().new_database() as database:
        load, figures = rolling_upgrade(ROOT, new, tmp_path / "server", seaweedfs().new_url(), database)
    print(f"\nrolling upgrade: {figures}; {dict(load.outcomes)}; {len(load.errors)} errors")  # noqa: T201 - shown by -s
    assert load.errors == []
