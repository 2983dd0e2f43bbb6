from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client.admission.queue import SLOTS, Queue
from client.errors import CompileError, Failure
from client.node import beat
from client.node.files import Files
from client.node.tree import LAYOUT, Tree
from tests.client.programs import compiled, document
from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.faulty_files import LyingLocks

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDER = """
import os, sys, time
from pathlib import Path
from client.admission.queue import Queue
from client.node.files import Files
from client.node.tree import Tree

queue = Queue(Tree(Path(sys.argv[1]), shared=False, files=Files()), slots=1, budget=None)
with queue.enter(10, limit=90) as admitted:
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(90)
        os._exit(0)
    print(admitted, flush=True)
    if sys.argv[2] != "fork":
        sys.stdin.readline()
print("left", flush=True)
if sys.argv[2] == "fork":
    os.wait()
"""


class Crowd:
    """Compilers that note how many run at once, and what they take together."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self.most = self.most_bytes = 0
        self.order: list[int] = []
        self._lock = threading.Lock()

    def compile(self, queue: Queue, size: int, *, alone: bool = False, seconds: float = 0.03) -> None:
        with queue.enter(size, limit=30, alone=alone) as admitted:
            assert admitted
            with self._lock:
                self.running.append(size)
                self.order.append(size)
                self.most = max(self.most, len(self.running))
                self.most_bytes = max(self.most_bytes, sum(self.running))
                if alone:
                    assert self.running == [size]
            time.sleep(seconds)
            with self._lock:
                self.running.remove(size)


def queue_in(path: Path, *, slots: int | None = None, budget: int | None = None, **options: object) -> Queue:
    return Queue(Tree(path, shared=False, files=Files()), slots=slots, budget=budget, **options)  # type: ignore[arg-type]


def together(*calls: threading.Thread) -> None:
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()


def left(path: Path) -> list[str]:
    return [found.name for found in (path / LAYOUT / SLOTS).iterdir() if found.name not in ("door", "peaks.json")]


def test_no_more_compilers_run_at_once_than_there_are_slots(make_cache):
    running = most = 0
    lock = threading.Lock()

    def compiler():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return compiled()

    caches = [make_cache(compile_slots=2) for _ in range(8)]
    together(
        *(
            threading.Thread(target=cache.get_or_compile, args=(document(f"{number}"), compiler))
            for number, cache in enumerate(caches)
        )
    )
    assert most == 2
    assert all(cache.statistics.errors == 0 for cache in caches)


def test_compilers_take_no_more_memory_together_than_there_is(tmp_path):
    crowd, queue = Crowd(), queue_in(tmp_path, budget=100)
    sizes = [30, 70, 10, 40, 60, 20, 50, 90]
    together(*(threading.Thread(target=crowd.compile, args=(queue, size)) for size in sizes))
    assert crowd.most_bytes <= 100
    assert crowd.most > 1
    assert left(tmp_path) == []


def test_a_compile_that_is_larger_than_all_memory_runs_alone(tmp_path):
    crowd, queue = Crowd(), queue_in(tmp_path, budget=100)
    together(*(threading.Thread(target=crowd.compile, args=(queue, size)) for size in [30, 500, 30, 30]))
    assert crowd.most_bytes == 500
    assert sorted(crowd.order) == [30, 30, 30, 500]


def test_one_that_wants_to_be_alone_is_alone(tmp_path):
    crowd, queue = Crowd(), queue_in(tmp_path, slots=8)
    together(
        *(threading.Thread(target=crowd.compile, args=(queue, 1)) for _ in range(6)),
        *(threading.Thread(target=crowd.compile, args=(queue, 2), kwargs={"alone": True}) for _ in range(2)),
    )
    assert len(crowd.order) == 8


def test_a_large_compile_is_not_overtaken_by_small_ones_for_ever(tmp_path):
    crowd, queue = Crowd(), queue_in(tmp_path, budget=100)
    stop = threading.Event()

    def small_ones() -> None:
        while not stop.is_set():
            crowd.compile(queue, 30, seconds=0.01)

    threads = [threading.Thread(target=small_ones) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        crowd.compile(queue, 100)
    finally:
        stop.set()
        for thread in threads:
            thread.join(HANG_SECONDS)
    assert crowd.most_bytes <= 100


def test_who_came_first_is_first(tmp_path):
    crowd, queue = Crowd(), queue_in(tmp_path, slots=1)
    with ExitStack() as stack:
        stack.enter_context(queue.enter(0, limit=1))
        threads = []
        for size in range(1, 6):
            threads.append(threading.Thread(target=crowd.compile, args=(queue, size)))
            threads[-1].start()
            wait_until(lambda size=size: len([name for name in left(tmp_path) if name[0] == "w"]) == size, "queueing")
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert crowd.order == [1, 2, 3, 4, 5]


@contextmanager
def holder(path: Path, what: str, *, admitted: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Run a process that was admitted, or wants to be; its whole group is gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        if admitted:
            assert process.stdout.readline() == "True\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=HANG_SECONDS)


def test_a_killed_compile_frees_its_share_at_once(tmp_path):
    with holder(tmp_path, "hold") as process:
        queue = queue_in(tmp_path, slots=1)
        with queue.enter(1, limit=0.1) as admitted:
            assert not admitted
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_SECONDS)
        with queue.enter(1, limit=10) as admitted:
            assert admitted
    assert left(tmp_path) == []


def test_a_stopped_compile_keeps_nobody_waiting_and_counts_again_when_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(beat, "STILL_AFTER", 3.0)
    with holder(tmp_path, "hold") as process:
        process.send_signal(signal.SIGSTOP)
        queue = queue_in(tmp_path, slots=1)
        with queue.enter(1, limit=HANG_SECONDS) as admitted:
            assert admitted
            process.send_signal(signal.SIGCONT)
        (file,) = (tmp_path / LAYOUT / SLOTS).glob("r-10-*")
        seen = file.stat().st_mtime_ns
        wait_until(lambda: file.stat().st_mtime_ns != seen, "it goes on")
        with queue.enter(1, limit=0) as admitted:
            assert not admitted
        process.communicate("go on\n", timeout=HANG_SECONDS)
        with queue.enter(1, limit=HANG_SECONDS) as admitted:
            assert admitted
    assert left(tmp_path) == []


def test_a_stopped_process_in_the_queue_is_passed_over_and_keeps_its_place_when_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(beat, "STILL_AFTER", 3.0)
    queue = queue_in(tmp_path, slots=1)
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        first.enter_context(queue.enter(1, limit=1))
        process = stack.enter_context(holder(tmp_path, "hold", admitted=False))
        wait_until(lambda: [name for name in left(tmp_path) if name[0] == "w"], "queueing")
        stop_outside_the_door(process, tmp_path)
        first.close()
        with queue.enter(1, limit=HANG_SECONDS) as admitted:
            assert admitted
            process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with queue.enter(1, limit=0) as admitted:
            assert not admitted


def stop_outside_the_door(process: subprocess.Popen[str], path: Path) -> None:
    """Stop a process that waits, at a moment at which nobody else has to wait for it at the door."""
    tree = Tree(path, shared=False, files=Files())
    with tree.directory(SLOTS) as (directory, trust):
        door = tree.open_lock_file("door", directory, trust)
    wait_until(lambda: tree.files.lock(door), "the door is free")
    process.send_signal(signal.SIGSTOP)
    tree.files.unlock(door)
    tree.files.close(door)


def test_the_memory_of_a_stopped_compile_is_kept_for_it_longer_than_its_slot(tmp_path, monkeypatch):
    monkeypatch.setattr(beat, "STILL_AFTER", 0.0)
    monkeypatch.setattr("client.admission.queue.RESERVED_FOR", 1e9)
    with holder(tmp_path, "hold") as process:
        process.send_signal(signal.SIGSTOP)
        queue = queue_in(tmp_path, slots=1, budget=100)
        with queue.enter(91, limit=0) as admitted:
            assert not admitted
        with queue.enter(90, limit=0) as admitted:
            assert admitted
        monkeypatch.setattr("client.admission.queue.RESERVED_FOR", 0.0)
        with queue.enter(91, limit=0, alone=True) as admitted:
            assert admitted


def test_a_forked_child_keeps_nobody_out(tmp_path):
    with holder(tmp_path, "fork") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "left\n"
        with queue_in(tmp_path, slots=1).enter(1, limit=5) as admitted:
            assert admitted


def test_a_compile_waits_no_longer_for_a_slot_than_for_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr(beat, "STILL_AFTER", math.inf)  # beats are not of this clock
    now, told = [0.0], []
    queue = queue_in(
        tmp_path, slots=1, clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    with queue.enter(1, limit=10) as first, queue.enter(1, limit=10, waiting=told.append) as second:
        assert first
        assert not second
    assert 10 <= now[0] < 11
    assert len(told) == 1
    with queue.enter(1, limit=0) as again:
        assert again


def test_an_interrupted_wait_leaves_the_queue(tmp_path):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    queue, impatient = queue_in(tmp_path, slots=1), queue_in(tmp_path, slots=1, sleep=interrupt)
    with queue.enter(1, limit=1):
        with pytest.raises(KeyboardInterrupt), impatient.enter(1, limit=10):
            pytest.fail("there was no slot")
        assert [name[0] for name in left(tmp_path)] == ["r"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EROFS], ids=errno.errorcode.get)
def test_where_slots_cannot_be_had_compilers_start_all_the_same(make_cache, caplog, code):
    class NoLocks(Files):
        def lock(self, descriptor: int) -> bool:
            raise OSError(code, os.strerror(code))

    cache = make_cache(files=NoLocks(), compile_slots=1)
    for name in ("a", "b"):
        assert cache.get_or_compile(document(name), compiled).source == "compile"
    assert caplog.text.count("not counted") == 1


def test_a_stuck_door_is_not_waited_at_for_ever(tmp_path):
    now = [0.0]
    tree = Tree(tmp_path, shared=False, files=Files())
    queue = queue_in(tmp_path, slots=1, clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + 1))
    with tree.directory(SLOTS, make=True) as (directory, trust):
        door = tree.open_lock_file("door", directory, trust)
    assert tree.files.lock(door)
    with queue.enter(1, limit=7200) as admitted:
        assert not admitted
    tree.files.close(door)
    assert now[0] < 100


def test_locks_that_lie_stop_no_compile(make_cache):
    caches = [make_cache(files=LyingLocks(), compile_slots=1) for _ in range(4)]
    made = []
    together(
        *(
            threading.Thread(
                target=lambda cache=cache, number=number: made.append(
                    cache.get_or_compile(document(f"{number}"), compiled).source
                )
            )
            for number, cache in enumerate(caches)
        )
    )
    assert made == ["compile"] * 4


def test_a_compile_that_ran_out_of_memory_is_tried_again_with_no_other_beside_it(make_cache, tmp_path, caplog):
    beside: list[list[str]] = []

    def compiler():
        beside.append(sorted(name.split("-")[1] for name in left(tmp_path / "node") if name[0] == "r"))
        if len(beside) == 1:
            raise CompileError(Failure("resource", "[F137] out of memory"))
        return compiled()

    assert make_cache(compile_memory=1 << 34).get_or_compile(document(), compiler).source == "compile"
    first, again = beside
    assert int(again[0]) > 2 * int(first[0])
    assert "no other compiler beside it" in caplog.text


def test_a_compile_that_runs_out_of_memory_even_alone_fails(make_cache):
    runs = []

    def compiler():
        runs.append(1)
        raise CompileError(Failure("resource", "[F137] out of memory"))

    with pytest.raises(CompileError, match="F137"):
        make_cache().get_or_compile(document(), compiler)
    assert len(runs) == 2


def test_a_compiler_that_was_stopped_at_its_limit_is_not_started_again(make_cache):
    now, runs = [0.0], []

    def compiler():
        runs.append(1)
        now[0] += 100
        raise CompileError(Failure("resource", "stopped: it took longer than 100 s"))

    with pytest.raises(CompileError, match="stopped"):
        make_cache(compile_limit=100, clock=lambda: now[0]).get_or_compile(document(), compiler)
    assert len(runs) == 1
