"""SIGKILL of a real server at every step of every operation that changes something; then a restart, then fsck.

The steps are the calls that change the disk, commit the database or answer a caller: see `tests.support.crash_server`.
For each step there is one server that dies just before it. Run with ``-s`` for the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from cache_server.database.engine import Database
from cache_server.database.migrate import migrate
from cache_server.services.fsck import Fsck
from cache_server.stores.local import LocalStore
from client.names import MAIN_OUTPUT
from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS
from tests.support.http_calls import Answer, Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cache_server.services.invariants import Report
    from tests.cache_server.harness import Built

ROOT = Path(__file__).parents[2]
TOKEN = "k" * 40
MOST_STEPS = 200
# quick, and without work of its own that would be counted among the steps
SETTINGS = {
    "bootstrap_token": TOKEN,
    "access_log": False,
    "scrub_bytes_per_second": 0,
    "usage_seconds": 3600,
    "collect_seconds": 3600,
    "collect_grace_seconds": 0,
}
VICTIM, OTHER, THIRD = build("victim"), build("other"), build("third")


class Forks:
    """Servers forked from one process that has everything imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crash_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder / "config")},
        )
        self._alive: set[int] = set()

    def start(self, data: Path, *, last: int = 0) -> tuple[Caller, int]:
        """Return a caller of a server that dies at its ``last``-th step once ``data/../arm`` exists, and its pid."""
        output = data.parent / "output"
        output.unlink(missing_ok=True)
        order = {
            "data": str(data),
            "output": str(output),
            "arm": str(data.parent / "arm"),
            "names": str(data.parent / "names"),
            "last": last,
            "settings": SETTINGS,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        self._alive.add(pid)
        end = time.monotonic() + HANG_SECONDS
        while True:
            with contextlib.suppress(FileNotFoundError):
                for line in output.read_text().splitlines():
                    if line.startswith("neff-cache: serving http://"):
                        return Caller(line.split()[2], TOKEN), pid
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.005)

    def kill(self, pid: int) -> None:
        """Kill a server that is ours, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.wait(pid)

    def wait(self, pid: int) -> None:
        end = time.monotonic() + HANG_SECONDS
        while pid in self._alive:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                self._alive.discard(pid)
                return
            assert time.monotonic() < end
            time.sleep(0.002)

    def close(self) -> None:
        for pid in list(self._alive):
            self.kill(pid)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(HANG_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """A data folder with two entries that were acknowledged long ago."""
    folder = tmp_path_factory.mktemp("template")
    caller, pid = forks.start(folder / "data")
    for built in (OTHER, THIRD):
        assert caller.publish(built).status == 201
    forks.kill(pid)
    return folder / "data"


def _fsck(data: Path, *, deep: bool = False) -> Report:
    database = Database(make_url(f"sqlite:///{data}/cache.db"), connections=1)
    try:
        migrate(database)
        store = LocalStore(data / "store")
        return Fsck(store, database, orphan_seconds=86400, deep=deep, alone=True).run()
    finally:
        database.close()


def _clean_soon(data: Path) -> Report:
    """Check beside the server until its first sweep has been around."""
    end = time.monotonic() + HANG_SECONDS
    while True:
        report = _fsck(data)
        if report.is_clean or time.monotonic() > end:
            return report
        time.sleep(0.01)


@dataclass(frozen=True)
class Operation:
    """Something that changes the store: what goes before, the calls, and what must hold however far they came."""

    name: str
    prepare: Callable[[Caller, Path], None]
    run: Callable[[Caller], Answer]
    holds: Callable[[Caller, Answer], None]


def _nothing(_caller: Caller, _data: Path) -> None:
    pass


def _publish_victim(caller: Caller, _data: Path) -> None:
    assert caller.publish(VICTIM).status == 201


def _damage_victim(caller: Caller, data: Path) -> None:
    _publish_victim(caller, data)
    output = VICTIM.entry.output()
    assert output is not None
    path = data / "store" / VICTIM.address.path / output.sha256
    path.unlink()
    path.write_bytes(bytes(output.size))


def _set_quota(caller: Caller, data: Path) -> None:
    _publish_victim(caller, data)
    # the other two are pinned: the victim is what must go
    for built in (OTHER, THIRD):
        assert caller.call("PUT", f"/v1/default/pins/entries/graph/{built.entry.key}").status in {200, 201}
    assert caller.call("PUT", "/admin/v1/projects/default/quota", {"max_entries": 2}).status == 204


def _is_served(caller: Caller, built: Built) -> bool:
    answer = caller.call("GET", built.artifact)
    assert answer.status in {200, 404}, answer
    if answer.status == 200:
        assert answer.body == built.stored[MAIN_OUTPUT]
    return answer.status == 200


def _published(caller: Caller, answer: Answer) -> None:
    assert _is_served(caller, VICTIM) or answer.status != 201


def _deleted(caller: Caller, answer: Answer) -> None:
    assert not (_is_served(caller, VICTIM) and answer.status == 204)


def _quarantined(caller: Caller, _answer: Answer) -> None:
    # never the wrong bytes as right ones: whoever reads them finds out by the digest, suspects again, and is believed
    served = caller.call("GET", VICTIM.artifact)
    if served.status == 200:
        verdict = caller.call("POST", f"{VICTIM.path}/suspect", {"sha256": VICTIM.entry.outputs[0].sha256})
        assert json.loads(verdict.body)["state"] == "quarantined"
    assert caller.call("GET", VICTIM.artifact).status == 404


def _collected(caller: Caller, answer: Answer) -> None:
    if answer.status == 200:
        assert not _is_served(caller, VICTIM)
    # or else the victim would not be taken in again
    assert caller.call("PUT", "/admin/v1/projects/default/quota", {}).status == 204


def _pinned(caller: Caller, answer: Answer) -> None:
    pins = json.loads(caller.call("GET", "/v1/default/pins").body)["pins"]
    assert len(pins) == 1 or answer.status != 201


OPERATIONS = (
    Operation("publish", _nothing, lambda caller: caller.publish(VICTIM), _published),
    Operation("delete", _publish_victim, lambda caller: caller.call("DELETE", VICTIM.path), _deleted),
    Operation(
        "quarantine",
        _damage_victim,
        lambda caller: caller.call("POST", f"{VICTIM.path}/suspect", {"sha256": VICTIM.entry.outputs[0].sha256}),
        _quarantined,
    ),
    Operation("collect", _set_quota, lambda caller: caller.call("POST", "/admin/v1/collect", {}), _collected),
    Operation(
        "pin",
        _nothing,
        lambda caller: caller.call("PUT", f"/v1/default/pins/entries/graph/{OTHER.entry.key}"),
        _pinned,
    ),
)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.share(2)
def test_a_kill_at_any_step_costs_no_acknowledged_entry_and_leaves_nothing_broken(
    operation: Operation, forks: Forks, template: Path, tmp_path: Path
) -> None:
    rows = []
    for step in range(1, MOST_STEPS):
        folder = tmp_path / str(step)
        data = folder / "data"
        shutil.copytree(template, data)
        caller, pid = forks.start(data, last=step)
        operation.prepare(caller, data)
        (folder / "arm").touch()
        answer = operation.run(caller)
        (folder / "arm").unlink()
        survived = answer.status != 0
        if survived:
            forks.kill(pid)
        forks.wait(pid)
        names = (folder / "names").read_text().split()
        before = _fsck(data)

        caller, pid = forks.start(data)
        after = _clean_soon(data)
        assert after.findings == [], (step, names[-1])
        assert _is_served(caller, OTHER)
        assert _is_served(caller, THIRD)
        operation.holds(caller, answer)
        # nobody is locked out: the key can be published at once, and is then served
        assert caller.publish(VICTIM).status in {200, 201}
        assert _is_served(caller, VICTIM)
        assert _fsck(data, deep=True).findings == [], (step, names[-1])
        forks.kill(pid)
        rows.append((step, names[-1], ", ".join(sorted({f.invariant for f in before.findings})) or "clean"))
        shutil.rmtree(folder)
        if survived:
            break
    else:
        pytest.fail(f"{operation.name} did not end within {MOST_STEPS} steps")
    lines = [f"{step:5}  {name:8} {found}" for step, name, found in rows]
    head = f"{operation.name}: killed before each of {len(rows) - 1} steps; fsck before the restart, clean after it"
    print("", head, *lines, sep="\n")  # noqa: T201 - the table that -s shows
    assert len(rows) > 2
