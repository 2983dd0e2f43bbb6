"""Single orders of events that the property test may not meet by chance."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from client.errors import Failure
from client.names import Kind
from client.transports.direct_lease import DirectLease, Stillness, Waiting, acquire
from client.transports.entry_folder import EntryFolder
from client.transports.shared_files import SharedFolder
from client.wire import Failed, Granted, Holder, Ready, Wait
from tests.client.programs import build, document, entry_of

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = Holder("node", 1)


class Files:
    """A store in memory whose clock the test moves."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0
        self.files: dict[str, tuple[bytes, float]] = {}

    def now(self) -> float:
        return self.time

    def names(self) -> list[str]:
        return list(self.files)

    def read(self, name: str) -> tuple[bytes, float] | None:
        return self.files.get(name)

    def create(self, name: str, data: bytes) -> bool:
        there = name in self.files
        self.files.setdefault(name, (data, self.time))
        return not there

    def replace(self, name: str, data: bytes) -> None:
        self.files[name] = (data, self.time)

    def remove(self, name: str) -> None:
        self.files.pop(name, None)


WAITING = Waiting(lambda: 0.0, lambda _: None, lambda low, _: low)


@pytest.fixture
def folder(tmp_path: Path) -> EntryFolder:
    folder = EntryFolder(SharedFolder(tmp_path / "shared"), "default", Kind.GRAPH, "a" * 64, WAITING)
    folder.make()
    return folder


@pytest.fixture
def lease(folder: EntryFolder) -> DirectLease:
    return DirectLease(folder, Stillness(lambda: 0.0))


def test_whoever_looked_before_later_holders_came_and_went_takes_no_old_generation(
    folder: EntryFolder, lease: DirectLease
) -> None:
    looked = lease.current()
    for _ in range(2):
        granted = lease.succeed(lease.current(), HOLDER, folder.now())
        assert granted is not None
        lease.end(granted)
    lease.tidy()
    assert lease.succeed(looked, HOLDER, folder.now()) is None
    standing = lease.current()
    assert standing is not None
    assert standing.generation == 2
    assert lease.generation(1) is None


def test_an_entry_published_while_the_lease_was_taken_is_used_and_the_lease_given_back(
    folder: EntryFolder, lease: DirectLease
) -> None:
    entry = entry_of(document(), {"model.neff": build()})
    looks = iter([None, Ready(entry)])
    assert acquire(lease, folder.now, lambda: next(looks), HOLDER, WAITING) == Ready(entry)
    standing = lease.current()
    assert standing is not None
    assert standing.state == "released"
    assert isinstance(acquire(lease, folder.now, lambda: None, HOLDER, WAITING), Granted)


def test_a_failure_between_two_looks_is_told_to_who_waited_for_it(
    folder: EntryFolder, lease: DirectLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = lease.succeed(None, HOLDER, folder.now())
    assert granted is not None
    failure = Failure("transient", "killed")
    read = EntryFolder.read

    def read_and_fail(here: EntryFolder, name: str) -> tuple[bytes, float] | None:
        """Let the holder fail as soon as anybody has seen that it holds."""
        found = read(here, name)
        monkeypatch.undo()
        lease.end(granted, failure)
        return found

    monkeypatch.setattr(EntryFolder, "read", read_and_fail)
    passing = Waiting(iter(range(100)).__next__, lambda _: None, lambda low, _: low)
    answer = acquire(lease, folder.now, lambda: None, HOLDER, passing, wait_seconds=20, seen_generation=1)
    assert isinstance(answer, Failed)
    assert answer.failure == failure


def test_holders_that_die_one_after_another_are_counted_and_the_next_one_waits() -> None:
    store = Files()
    lease = DirectLease(store, Stillness(lambda: 0.0))
    for attempt in range(3):
        granted = acquire(lease, lambda: store.time, lambda: None, HOLDER, WAITING)
        assert isinstance(granted, Granted), attempt
        store.time += 31
    answer = acquire(lease, lambda: store.time, lambda: None, Holder("next", 2), WAITING)
    assert isinstance(answer, Failed)
    assert (answer.failure.failure_class, answer.expires_in, answer.host) == ("resource", 59, "node")
    assert "memory" in answer.failure.text
    store.time += 60
    granted = acquire(lease, lambda: store.time, lambda: None, HOLDER, WAITING)
    assert isinstance(granted, Granted)
    lease.end(granted, Failure("transient", "killed"))
    answer = acquire(lease, lambda: store.time, lambda: None, HOLDER, WAITING)
    assert isinstance(answer, Failed)
    assert (answer.failure.text, answer.expires_in) == ("killed", 120)
    store.time += 121
    granted = acquire(lease, lambda: store.time, lambda: None, HOLDER, WAITING)
    assert isinstance(granted, Granted)
    lease.end(granted)  # no failure: a program, or no trouble
    assert isinstance(acquire(lease, lambda: store.time, lambda: None, HOLDER, WAITING), Granted)


def test_a_count_that_another_party_wrote_is_no_long_wait() -> None:
    store = Files()
    lease = DirectLease(store, Stillness(lambda: 0.0))
    for number, attempts in enumerate([10**9, -1, "many", 1e300, 10**5], start=1):
        value = {"schema": 1, "state": "held", "nonce": "n", "ttl_seconds": 30, "holder": {"host": "h", "pid": 1}}
        store.replace(f"lease-{number:08d}.json", json.dumps({**value, "attempts": attempts}).encode())
        store.time += 31
        answer = acquire(lease, lambda: store.time, lambda: None, HOLDER, WAITING)
        if isinstance(answer, Failed):
            assert (attempts, answer.expires_in) == (10**5, 3599)
        else:
            assert isinstance(answer, Granted)
            store.files.clear()


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": 1, "state": "he', b"\0" * 100, b"<Error/>"])
def test_a_lease_that_was_never_written_whole_costs_a_waiter_a_moment(
    folder: EntryFolder, lease: DirectLease, content: bytes
) -> None:
    path = folder.path / "lease-00000001.json"
    path.write_bytes(content)
    # its writer may be about to fill it
    assert isinstance(acquire(lease, folder.now, lambda: None, HOLDER, WAITING), Wait)
    old = path.stat().st_mtime - 3
    os.utime(path, (old, old))
    granted = acquire(lease, folder.now, lambda: None, HOLDER, WAITING)
    assert isinstance(granted, Granted)
    assert granted.generation == 2


@pytest.mark.parametrize("content", [b'{"schema": 2}', b"[]", b"null"])
def test_a_lease_of_a_newer_version_is_held_for_as_long_as_ours(
    folder: EntryFolder, lease: DirectLease, content: bytes
) -> None:
    path = folder.path / "lease-00000001.json"
    path.write_bytes(content)
    for age, answer in ((20, Wait), (31, Granted)):
        then = time.time() - age
        os.utime(path, (then, then))
        assert isinstance(acquire(lease, folder.now, lambda: None, HOLDER, WAITING), answer)
