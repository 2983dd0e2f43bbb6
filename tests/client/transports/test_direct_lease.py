"""Single orders of events that the property test may not meet by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.errors import Failure
from client.names import Kind
from client.transports.direct_lease import DirectLease, Stillness, Waiting, acquire
from client.transports.entry_folder import EntryFolder
from client.transports.shared_files import SharedFolder
from client.wire import Failed, Granted, Holder, Ready
from tests.client.programs import build, document, entry_of

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = Holder("node", 1)
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
