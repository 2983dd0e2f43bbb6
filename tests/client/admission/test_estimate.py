from __future__ import annotations

import json

import pytest

from client.admission.estimate import FIRST, LEARNED, PEAKS, PER_BYTE, Estimator, expected
from client.admission.memory import memory_limit
from client.admission.queue import SLOTS
from client.artifact import Compiled
from client.key import CompilerIdentity
from client.node.files import Files
from client.node.tree import LAYOUT, Tree
from tests.client.programs import build, document

COMPILER = CompilerIdentity("test", "1.2.3+abc")
GIB = 1 << 30


@pytest.fixture
def estimator(tmp_path):
    return Estimator(Tree(tmp_path, shared=False, files=Files()))


def test_an_unknown_compiler_is_expected_to_take_more_for_a_larger_module():
    assert expected([], 0) == FIRST
    assert expected([], 1 << 20) == FIRST + (PER_BYTE << 20)


@pytest.mark.parametrize(
    ("module_bytes", "least", "most"),
    [
        (1000, 2 * GIB, 3 * GIB),  # as others of its size
        (1900, 2 * GIB, 3 * GIB),
        (10_000, 20 * GIB, 30 * GIB),  # larger than all others: in proportion to the nearest
        (10, 2 * GIB, 3 * GIB),  # smaller than all others: as much as the nearest
    ],
)
def test_a_compile_is_expected_to_take_what_others_of_its_size_took(module_bytes, least, most):
    assert least <= expected([(1000, 2 * GIB), (900, GIB)], module_bytes) <= most


def test_what_one_process_learns_all_know_and_each_compiler_by_itself(estimator, tmp_path):
    estimator.learn(COMPILER, 1000, 5 * GIB)
    other = Estimator(Tree(tmp_path, shared=False, files=Files()))
    assert other.estimate(COMPILER, 1000) > 5 * GIB
    assert other.estimate(CompilerIdentity("test", "1.2.4+abc"), 0) == FIRST


def test_the_file_stays_small(estimator, tmp_path):
    for number in range(2 * LEARNED):
        estimator.learn(COMPILER, number, GIB)
    for number in range(20):
        estimator.learn(CompilerIdentity("test", str(number)), 1, GIB)
    known = json.loads((tmp_path / LAYOUT / SLOTS / PEAKS).read_text())["compilers"]
    assert len(known) <= 8
    assert all(len(peaks) <= LEARNED for peaks in known.values())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"schema": 2}',
        '{"schema": 1, "compilers": 3}',
        '{"schema": 1, "compilers": {"test 1.2.3+abc": [[1]]}}',
        '{"schema": 1, "compilers": {"test 1.2.3+abc": [[-1, 5]]}}',
    ],
)
def test_a_damaged_file_is_as_good_as_none(estimator, tmp_path, content):
    estimator.learn(COMPILER, 1, 5 * GIB)
    (tmp_path / LAYOUT / SLOTS / PEAKS).write_text(content)
    assert estimator.estimate(COMPILER, 0) == FIRST
    estimator.learn(COMPILER, 1, 5 * GIB)
    assert estimator.estimate(COMPILER, 1) > 5 * GIB


def test_a_cache_learns_from_the_compiles_that_end_well(make_cache, tmp_path):
    made = Compiled({"model.neff": build()}, 1.0, peak_memory_bytes=7 * GIB)
    make_cache().get_or_compile(document(), lambda: made, module_bytes=5000)
    tree = Tree(tmp_path / "node", shared=False, files=Files())
    assert Estimator(tree).estimate(COMPILER, 5000) > 7 * GIB


def _machine(root, *, limits):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text("12:cpu:/other\n0::/jobs/one\n")
    for path, value in limits.items():
        group = root / "sys/fs/cgroup" / path
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(value)


@pytest.mark.parametrize(
    ("limits", "expected_gib"),
    [
        ({}, 16),
        ({"jobs/one": "max\n"}, 16),
        ({"jobs/one": f"{4 * GIB}\n"}, 4),
        ({"jobs": f"{8 * GIB}\n", "jobs/one": "max\n"}, 8),
        ({"": f"{2 * GIB}\n", "jobs/one": f"{4 * GIB}\n"}, 2),
        ({"jobs/one": f"{64 * GIB}\n"}, 16),
    ],
)
def test_memory_is_that_of_the_tightest_control_group(tmp_path, limits, expected_gib):
    _machine(tmp_path, limits=limits)
    assert memory_limit(tmp_path) == expected_gib * GIB


def test_where_nothing_is_known_of_memory_there_is_no_limit(tmp_path):
    assert memory_limit(tmp_path) is None
