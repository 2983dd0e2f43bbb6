from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from client.errors import Failure
from client.names import Kind
from client.node import beat
from client.node.files import Files
from client.node.lock import DIAGNOSIS_LIFE, FAILURE_LIFE, KeyLocks, Turn
from client.node.tree import Tree
from client.wire import Holder
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

KEY = "ab" * 32
GRAPH = Kind.GRAPH
ME = Holder("here", os.getpid())
DIAGNOSIS = Failure("diagnosis", "NCC_E1: no", "the log")
OUT_OF_MEMORY = Failure("resource", "out of memory")


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path, shared=False, files=Files())


@pytest.fixture
def locks(tree):
    return KeyLocks(tree, "default")


def _hold(locks: KeyLocks, *, limit: float = 20, arrived: Any = None, waiting: Any = None) -> Any:
    return locks.hold(
        GRAPH,
        KEY,
        ME,
        limit=limit,
        arrived=arrived or (lambda: False),
        waiting=waiting or (lambda owner, seconds: None),
    )


def _folder(tree: Tree) -> Path:
    return tree.root / "v1" / "default" / "graph" / "locks"


HOLDING = """
import sys, time
from pathlib import Path
from client.names import Kind
from client.node.files import Files
from client.node.lock import KeyLocks
from client.node.tree import Tree
from client.wire import Holder
import os, subprocess
from client.node import beat
beat.STILL_AFTER = 2.5
locks = KeyLocks(Tree(Path(sys.argv[1]), shared=False, files=Files()), "default")
with locks.hold(Kind.GRAPH, "ab" * 32, Holder("there", os.getpid(), 3), limit=30,
                arrived=lambda: False, waiting=lambda owner, seconds: None) as turn:
    child = 0
    if sys.argv[2] == "compiler":
        child = subprocess.Popen(["sleep", "60"]).pid
    if sys.argv[2] == "fork":
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    print(any(each.locked for each in turn.chain()), child, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tree):
    """Start a process that holds the lock, with a child of the given sort; return the process and the child's id."""
    started: list[subprocess.Popen[str]] = []
    children: list[int] = []

    def start(child: str = "none") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDING, str(tree.root), child]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        locked, number = process.stdout.readline().split()
        assert locked == "True"
        children.append(int(number))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(HANG_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
    for number in filter(None, children):
        os.kill(number, signal.SIGKILL)


def test_one_at_a_time_works_on_a_key(locks):
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with _hold(locks) as turn:
            assert turn.locked
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert most == 1


def test_lock_files_do_not_pile_up(locks, tree):
    for _ in range(3):
        with _hold(locks):
            assert [path.name for path in _folder(tree).iterdir()] == [f"{KEY}.lock"]
    assert not list(_folder(tree).iterdir())


def test_a_lock_file_left_by_a_dead_process_locks_nothing(locks, tree):
    _folder(tree).mkdir(parents=True)
    left = _folder(tree) / f"{KEY}.lock"
    left.write_text('{"host": "here", "pid": 1, "rank": null, "label": ""}')  # a process that is alive, but another
    with _hold(locks) as turn:
        assert turn.locked
        assert turn.seconds == 0


@pytest.mark.parametrize("child", ["none", "compiler", "fork"])
def test_a_killed_owner_is_succeeded_at_once_whatever_children_it_leaves(locks, holder, child):
    process = holder(child)
    with _hold(locks, limit=0.1) as turn:
        assert not turn.locked
    process.kill()
    with _hold(locks, limit=20) as turn:
        assert turn.locked


def test_whoever_waits_learns_for_whom(tree, holder):
    process = holder()
    said: list[tuple[Holder | None, float]] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 1.0

    locks = KeyLocks(tree, "default", clock=lambda: now[0], sleep=sleep)
    with _hold(locks, limit=60, waiting=lambda owner, seconds: said.append((owner, seconds))) as turn:
        assert not turn.locked
    assert said == [(Holder("there", process.pid, 3), 5.0)]


def test_waiting_ends_when_the_entry_is_there_though_the_lock_is_held(tree, holder, monkeypatch):
    monkeypatch.setattr(beat, "STILL_AFTER", math.inf)  # its beats are not of this clock
    holder()
    now = [0.0]
    locks = KeyLocks(tree, "default", clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    with _hold(locks, limit=1000, arrived=lambda: now[0] > 100) as turn:
        assert not turn.locked
    assert 100 < now[0] < 110


@pytest.fixture
def impatient(monkeypatch):
    """Take an owner for stopped sooner than jobs do, and yet not one that beats."""
    monkeypatch.setattr(beat, "STILL_AFTER", 2.5)


def test_an_owner_that_stands_still_is_succeeded_by_one_of_those_who_wait_at_a_time(locks, tree, holder, impatient):
    holder().send_signal(signal.SIGSTOP)
    inside, most, heirs = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, heirs
        with _hold(locks, limit=60) as turn:
            inside, heirs = inside + 1, heirs + (not turn.locked)
            most = max(most, inside)
            time.sleep(0.5)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert (most, heirs) == (1, 3)
    assert not list(_folder(tree).glob("*.1.lock"))


def test_an_heir_that_stands_still_is_succeeded_too(locks, holder, impatient):
    holder().send_signal(signal.SIGSTOP)
    holder().send_signal(signal.SIGSTOP)
    with _hold(locks, limit=60) as turn:
        assert [each.name for each in turn.chain() if each.locked] == [f"{KEY}.2.lock"]


def test_an_owner_that_beats_keeps_its_lock_however_long_it_takes(locks, holder, impatient):
    holder()
    with _hold(locks, limit=4.5) as turn:
        assert turn.seconds >= 4.5
        assert not any(each.locked for each in turn.chain())


def test_an_owner_that_moves_again_is_waited_for_again(tree, holder, impatient):
    process = holder()
    process.send_signal(signal.SIGSTOP)
    with _hold(KeyLocks(tree, "default"), limit=60) as heir:
        assert not heir.locked
        process.send_signal(signal.SIGCONT)
        with _hold(KeyLocks(tree, "default"), limit=4.5) as turn:
            assert not any(each.locked for each in turn.chain())


def test_an_owner_of_a_release_without_beats_is_not_taken_for_stopped(locks, tree, holder, impatient):
    holder().send_signal(signal.SIGSTOP)
    (_folder(tree) / f"{KEY}.lock").write_text(json.dumps(ME.to_json()))
    with _hold(locks, limit=4.5) as turn:
        assert not any(each.locked for each in turn.chain())


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_where_locks_are_not_to_be_had_work_goes_on(tmp_path, code):
    class NoLocks(Files):
        def lock(self, descriptor: int) -> bool:
            raise OSError(code, os.strerror(code))

    with _hold(KeyLocks(Tree(tmp_path, shared=False, files=NoLocks()), "default")) as turn:
        assert not turn.locked


def test_where_nothing_can_be_written_work_goes_on(tmp_path):
    class ReadOnly(Files):
        def open_lock_file(self, name: str, parent: int, mode: int) -> int:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with _hold(KeyLocks(Tree(tmp_path, shared=False, files=ReadOnly()), "default")) as turn:
        assert not turn.locked


def test_who_waited_behind_a_failed_compile_takes_its_failure(locks):
    turns: list[Turn] = []
    inside = threading.Event()

    def wait() -> None:
        inside.wait(HANG_SECONDS)
        with _hold(locks) as turn:
            turns.append(turn)

    thread = threading.Thread(target=wait)
    thread.start()
    with _hold(locks):
        inside.set()
        time.sleep(0.3)
        locks.leave_failure(GRAPH, KEY, OUT_OF_MEMORY, "here")
    thread.join(HANG_SECONDS)
    assert turns[0].failure is not None
    assert turns[0].failure.failure == OUT_OF_MEMORY


def test_who_did_not_wait_is_told_of_a_diagnosis_only(locks):
    locks.leave_failure(GRAPH, KEY, OUT_OF_MEMORY, "here")
    with _hold(locks) as turn:
        assert turn.failure is None
    locks.leave_failure(GRAPH, KEY, DIAGNOSIS, "here")
    with _hold(locks) as turn:
        assert turn.failure is not None
        assert turn.failure.failure == DIAGNOSIS
    locks.forget_failure(GRAPH, KEY)
    with _hold(locks) as turn:
        assert turn.failure is None


@pytest.mark.parametrize("age", [DIAGNOSIS_LIFE + 1, FAILURE_LIFE + 1, -10])
def test_a_diagnosis_does_not_live_for_ever(tree, age):
    now = [1000.0]
    locks = KeyLocks(tree, "default", now=lambda: now[0])
    locks.leave_failure(GRAPH, KEY, DIAGNOSIS, "here")
    now[0] += age
    with _hold(locks) as turn:
        assert turn.failure is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"failure": 1, "host": 2, "identity": 3, "time": "x"}'])
def test_a_failure_that_cannot_be_read_is_none(locks, tree, content):
    _folder(tree).mkdir(parents=True)
    (_folder(tree) / f"{KEY}.failed").write_text(content)
    with _hold(locks) as turn:
        assert turn.failure is None
