from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from client.names import Kind
from client.node.eviction import DAY, LOW_WATER, Evictor
from client.node.files import Files
from client.node.tier import NodeTier
from tests.client.programs import build, document, entry_of

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 10_000
COST = SIZE + 10_000
"""What an entry of the tests takes at least: program, entry.json, blocks."""


@pytest.fixture
def tier(tmp_path):
    tier = NodeTier(tmp_path / "tier", "default")
    tier.tree.claim()
    return tier


def _fill(tier: NodeTier, count: int, kind: Kind = Kind.GRAPH) -> list[str]:
    """Store ``count`` entries, each used a minute after the one before; return their keys in that order."""
    keys = []
    start = time.time() - 60 * (count + 10)
    for number in range(count):
        program = document(f"{kind} {number}", kind)
        neff = build(SIZE)
        tier.put(entry_of(program, {"model.neff": neff}), neff)
        used = start + 60 * number
        os.utime(_path(tier, program.key, kind), (used, used))
        keys.append(program.key)
    return keys


def _path(tier: NodeTier, key: str, kind: Kind = Kind.GRAPH) -> Path:
    return tier.tree.root / "v1" / "default" / kind / key[:2] / key


def _held(tier: NodeTier, keys: list[str], kind: Kind = Kind.GRAPH) -> list[bool]:
    return [_path(tier, key, kind).exists() for key in keys]


def test_what_was_used_last_stays_and_the_bound_is_kept(tier):
    keys = _fill(tier, 20)
    tier.get(Kind.GRAPH, keys[0])  # used now
    evictor = Evictor(tier.tree, max_bytes=10 * COST)
    evictor.sweep()
    held = _held(tier, keys)
    assert held[0]
    assert held[-1]
    assert not held[1]
    assert held[1:] == sorted(held[1:])
    total = sum(path.stat().st_size for path in tier.tree.root.rglob("*") if path.is_file())
    assert total <= 10 * COST * LOW_WATER
    assert all(tier.get(Kind.GRAPH, key) is not None for key, here in zip(keys, held, strict=True) if here)


def test_below_the_bound_nothing_goes(tier):
    keys = _fill(tier, 5)
    assert Evictor(tier.tree, max_bytes=1 << 30).sweep() == 0
    assert all(_held(tier, keys))


def test_all_projects_and_kinds_share_the_bound(tier):
    graphs, eager = _fill(tier, 10), _fill(tier, 10, Kind.EAGER)
    Evictor(tier.tree, max_bytes=2 * COST).sweep()
    assert sum(_held(tier, graphs)) + sum(_held(tier, eager, Kind.EAGER)) <= 2


def test_the_tier_is_not_measured_at_each_write(tier):
    measured: list[int] = []

    class Counting(Files):
        def list(self, descriptor: int) -> list[str]:
            measured.append(descriptor)
            return super().list(descriptor)

    keys = _fill(tier, 3)
    tier.tree.files = Counting()
    evictor = Evictor(tier.tree, max_bytes=1 << 30)
    evictor.written(SIZE)
    assert measured, "the first time"
    measured.clear()
    for _ in range(100):
        evictor.written(SIZE)
    Evictor(tier.tree, max_bytes=1 << 30).written(SIZE)
    assert not measured
    assert all(_held(tier, keys))


def test_the_bound_holds_over_many_writes(tier):
    evictor = Evictor(tier.tree, max_bytes=20 * COST)
    for number in range(100):
        program = document(f"number {number}")
        neff = build(SIZE)
        tier.put(entry_of(program, {"model.neff": neff}), neff)
        evictor.written(len(neff))
        total = sum(path.stat().st_size for path in tier.tree.root.rglob("*") if path.is_file())
        assert total <= 20 * COST


def test_what_other_processes_write_counts_too(tier):
    evictors = [Evictor(tier.tree, max_bytes=20 * COST) for _ in range(10)]
    for number in range(60):
        program = document(f"number {number}")
        neff = build(SIZE)
        tier.put(entry_of(program, {"model.neff": neff}), neff)
        evictors[number % 10].written(len(neff))
    total = sum(path.stat().st_size for path in tier.tree.root.rglob("*") if path.is_file())
    assert total <= 20 * COST


def test_only_one_process_at_a_time_measures(tier):
    keys = _fill(tier, 10)
    evictor = Evictor(tier.tree, max_bytes=COST)
    with tier.tree.directory() as (top, trust):
        lock = tier.tree.files.open_lock_file("sweep.lock", top, trust.file_mode)
    assert tier.tree.files.lock(lock)
    assert evictor.sweep() == 0
    assert all(_held(tier, keys))
    tier.tree.files.close(lock)
    assert evictor.sweep() > 0


def test_leftovers_of_killed_processes_go_after_a_day_and_nothing_else(tier):
    keys = _fill(tier, 2)
    namespace = _path(tier, keys[0]).parents[1]
    old, fresh = (namespace / keys[0][:2] / f"tmp-{pid}-0123456789abcdef" for pid in (1, 2))
    for path in (old, fresh):
        path.mkdir()
        (path / "model.neff").write_bytes(b"half")
    locks = namespace / "locks"
    locks.mkdir(mode=0o700)
    left, young = (f"{digit * 64}.lock" for digit in "ab")
    (locks / left).touch()
    (locks / young).touch()
    past = time.time() - DAY - 60
    for path in (old, locks / left):
        os.utime(path, (past, past))
    Evictor(tier.tree, max_bytes=1 << 30).sweep()
    assert not old.exists()
    assert fresh.exists()
    assert [path.name for path in locks.iterdir()] == [young]
    assert all(_held(tier, keys))


def test_a_lock_that_is_held_for_more_than_a_day_stays(tier):
    _fill(tier, 1)
    locks = tier.tree.root / "v1" / "default" / "graph" / "locks"
    locks.mkdir(mode=0o700)
    name = f"{'a' * 64}.lock"
    (locks / name).touch()
    with tier.tree.directory("default", "graph", "locks") as (directory, trust):
        held = tier.tree.files.open_lock_file(name, directory, trust.file_mode)
    assert tier.tree.files.lock(held)
    past = time.time() - DAY - 60
    os.utime(locks / name, (past, past))
    Evictor(tier.tree, max_bytes=1 << 30).sweep()
    assert (locks / name).exists()
    tier.tree.files.close(held)


def test_room_is_made_when_the_disk_is_full_though_the_bound_is_far(tier):
    keys = _fill(tier, 20)
    assert Evictor(tier.tree, max_bytes=1 << 40).make_room(SIZE)
    held = _held(tier, keys)
    assert not held[0]
    assert held[-1]


def test_few_free_inodes_evict_a_tenth_though_bytes_abound(tier):
    class FewInodes(Files):
        def space(self, descriptor: int) -> os.statvfs_result:
            return os.statvfs_result((4096, 4096, 1000, 900, 900, 1000, 5, 5, 0, 255))

    keys = _fill(tier, 20)
    tier.tree.files = FewInodes()
    Evictor(tier.tree, max_bytes=1 << 40).sweep()
    assert sum(_held(tier, keys)) == 18


def test_what_nobody_has_used_for_too_long_goes_though_there_is_room(tier):
    keys = _fill(tier, 10)  # the last one was used eleven minutes ago, the first one twenty
    Evictor(tier.tree, max_bytes=1 << 40, max_age=15.5 * 60).sweep()
    assert _held(tier, keys) == [False] * 5 + [True] * 5


def test_the_age_of_entries_is_looked_at_once_a_day_and_by_whoever_stores_something(tier):
    old = _fill(tier, 3)
    past = time.time() - 100 * DAY
    for key in old:
        os.utime(_path(tier, key), (past, past))
    first = Evictor(tier.tree, max_bytes=1 << 40, max_age=90 * DAY)
    first.written(SIZE)
    assert not any(_held(tier, old))

    late = _fill(tier, 3)
    for key in late:
        os.utime(_path(tier, key), (past, past))
    first.written(SIZE)
    assert all(_held(tier, late)), "swept a moment ago"
    tomorrow = Evictor(tier.tree, max_bytes=1 << 40, max_age=90 * DAY, now=lambda: time.time() + DAY + 60)
    tomorrow.written(SIZE)
    assert not any(_held(tier, late))


def test_a_pulled_entry_in_use_is_never_too_old(tier):
    keys = _fill(tier, 2)
    past = time.time() - 100 * DAY
    for key in keys:
        os.utime(_path(tier, key), (past, past))
    assert tier.get(Kind.GRAPH, keys[1]) is not None
    Evictor(tier.tree, max_bytes=1 << 40, max_age=90 * DAY).sweep()
    assert _held(tier, keys) == [False, True]


@pytest.mark.parametrize("content", ["[", "1\n" * 40_000, "12\n3x\n"])
def test_a_usage_file_that_means_nothing_is_measured_anew(tier, content):
    _fill(tier, 10)
    evictor = Evictor(tier.tree, max_bytes=2 * COST)
    (tier.tree.root / "v1" / "usage").write_text(content)
    (tier.tree.root / "v1" / "usage").chmod(0o600)
    evictor.written(SIZE)
    total = sum(path.stat().st_size for path in tier.tree.root.rglob("*") if path.is_file())
    assert total <= 2 * COST
