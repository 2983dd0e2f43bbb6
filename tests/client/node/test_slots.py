from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from client.node.files import Files
from client.node.slots import CompileSlots
from client.node.tree import Tree
from tests.client.programs import compiled, document


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
    threads = [
        threading.Thread(target=cache.get_or_compile, args=(document(f"{number}"), compiler))
        for number, cache in enumerate(caches)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == 2
    assert all(cache.statistics.errors == 0 for cache in caches)


def test_a_compile_waits_no_longer_for_a_slot_than_for_another_process(tmp_path):
    now = [0.0]
    slots = CompileSlots(
        Tree(tmp_path, shared=False, files=Files()),
        1,
        clock=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    with slots.take(limit=10) as first, slots.take(limit=10) as second:
        assert first
        assert not second
    assert 10 <= now[0] < 11
    with slots.take(limit=0) as again:
        assert again


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EROFS], ids=errno.errorcode.get)
def test_where_slots_cannot_be_had_compilers_start_all_the_same(make_cache, caplog, code):
    class NoLocks(Files):
        def lock(self, descriptor: int) -> bool:
            raise OSError(code, os.strerror(code))

    cache = make_cache(files=NoLocks(), compile_slots=1)
    for name in ("a", "b"):
        assert cache.get_or_compile(document(name), compiled).source == "compile"
    assert caplog.text.count("not counted") == 1
