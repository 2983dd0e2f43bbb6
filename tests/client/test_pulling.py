from __future__ import annotations

import errno
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from client import pulling
from client.errors import Denied, Refused, Unreachable
from client.node.eviction import Evictor
from client.node.files import Files
from client.node.tier import NodeTier
from client.plans import Wanted
from client.pulling import NodeFullError, Progress, Puller, in_parallel, missing
from tests.client.programs import compiled, document, entry_of
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence
    from pathlib import Path

    from client.wire import Entry


@dataclass
class MadeSource:
    """A shared cache in memory, whose ``faults`` are raised one by one, each in place of an answer."""

    programs: dict[str, tuple[Entry, dict[str, bytes]]] = field(default_factory=dict)
    faults: list[Exception] = field(default_factory=list)
    break_after: int | None = None
    fetched: list[list[str]] = field(default_factory=list)
    address: str = "memory:test"
    batch: int = 100

    def add(self, name: str, size: int = 300) -> Entry:
        program = compiled(size=size)
        entry = entry_of(document(name), program.outputs)
        self.programs[entry.key] = (entry, dict(program.outputs))
        return entry

    def find(self, wanted: Sequence[Wanted]) -> list[Entry]:
        if self.faults:
            raise self.faults.pop(0)
        return [self.programs[each.key][0] for each in wanted if each.key in self.programs]

    def fetch(
        self, entries: Sequence[Entry], names: Collection[str] | None
    ) -> Generator[tuple[Entry, dict[str, bytes] | None]]:
        self.fetched.append([entry.key for entry in entries])
        for number, entry in enumerate(entries):
            if self.break_after == number:
                self.break_after = None
                raise Unreachable("the connection broke off")
            yield entry, {name: data for name, data in self.programs[entry.key][1].items() if names and name in names}

    def close(self) -> None:
        pass


@dataclass
class Told(Progress):
    expected: list[tuple[int, int]] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)

    def total(self, entries: int, size: int) -> None:
        self.expected.append((entries, size))

    def done(self, entries: int, size: int) -> None:
        self.finished.append((entries, size))


def _wanted(entry: Entry) -> Wanted:
    return Wanted(entry.project, entry.kind, entry.key)


def _puller(source: MadeSource, root: Path, *, files: Files | None = None, **options: Any) -> tuple[Puller, NodeTier]:
    tier = NodeTier(root, "default", files=files)
    max_bytes = options.pop("max_bytes", 1 << 30)
    sleeps: list[float] = options.pop("sleeps", [])
    puller = Puller(source, tier, Evictor(tier.tree, max_bytes), max_bytes=max_bytes, sleep=sleeps.append, **options)
    return puller, tier


def test_many_small_programs_come_in_few_requests(tmp_path: Path) -> None:
    source = MadeSource()
    plan = [_wanted(source.add(str(number))) for number in range(600)]
    puller, _ = _puller(source, tmp_path / "node")
    told = Told()
    puller._progress = told
    assert puller.pull(plan).pulled == 600
    assert len(source.fetched) == 3
    assert told.expected[0][0] == sum(entries for entries, _ in told.finished) == 600
    assert told.expected[0][1] == sum(size for _, size in told.finished)


def test_large_programs_come_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "GROUP_BYTES", 5000)
    source = MadeSource()
    plan = [_wanted(source.add(str(number), 4000)) for number in range(5)]
    assert _puller(source, tmp_path / "node")[0].pull(plan).pulled == 5
    assert [len(group) for group in source.fetched] == [1] * 5


def test_no_more_programs_are_held_in_memory_than_the_budget_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "GROUP_BYTES", 1)
    monkeypatch.setattr(pulling, "BUDGET", 9000)
    running = [0]
    most = [0]
    lock = threading.Lock()

    class Counting(MadeSource):
        def fetch(
            self, entries: Sequence[Entry], names: Collection[str] | None
        ) -> Generator[tuple[Entry, dict[str, bytes] | None]]:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            yield from super().fetch(entries, names)
            with lock:
                running[0] -= 1

    source = Counting()
    plan = [_wanted(source.add(str(number), 3000)) for number in range(20)]
    plan.append(_wanted(source.add("larger than the budget", 20_000)))
    assert _puller(source, tmp_path / "node", jobs=8)[0].pull(plan).pulled == 21
    assert most[0] <= 2


def test_a_request_that_breaks_off_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    source = MadeSource(break_after=7)
    plan = [_wanted(source.add(str(number))) for number in range(10)]
    sleeps: list[float] = []
    puller, _ = _puller(source, tmp_path / "node", sleeps=sleeps)
    result = puller.pull(plan)
    assert (result.pulled, result.complete) == (10, True)
    assert [len(group) for group in source.fetched] == [10, 3]
    assert len(sleeps) == 1


@pytest.mark.parametrize("fault", [Unreachable("gone"), Refused("slowly", status=429)])
def test_a_passing_fault_is_waited_out_and_a_lasting_one_is_raised(tmp_path: Path, fault: Exception) -> None:
    source = MadeSource(faults=[fault] * 2)
    plan = [_wanted(source.add("a"))]
    sleeps: list[float] = []
    assert _puller(source, tmp_path / "node", sleeps=sleeps)[0].pull(plan).pulled == 1
    assert sleeps == sorted(sleeps) != []
    source.faults = [fault] * 3
    with pytest.raises(type(fault)):
        _puller(source, tmp_path / "other")[0].pull(plan)


def test_a_refusal_is_not_asked_again(tmp_path: Path) -> None:
    source = MadeSource(faults=[Denied("no"), Denied("no")])
    with pytest.raises(Denied):
        _puller(source, tmp_path / "node")[0].pull([_wanted(source.add("a"))])
    assert len(source.faults) == 1


def test_what_came_before_a_fault_is_kept_for_the_next_run(tmp_path: Path) -> None:
    source = MadeSource()
    plan = [_wanted(source.add(str(number))) for number in range(10)]
    puller, tier = _puller(source, tmp_path / "node", jobs=1)

    class Stops(Files):
        stored = 0

        def rename(self, old: str, new: str, parent: int, new_parent: int | None = None) -> None:
            if len(new) == 64:
                self.stored += 1
                if self.stored > 4:
                    raise OSError(errno.ENOSPC, "No space left on device")
            super().rename(old, new, parent, new_parent)

    full, _ = _puller(source, tmp_path / "node", jobs=1, files=Stops())
    with pytest.raises(OSError, match="No space left"):
        full.pull(plan)
    assert sum(tier.get(each.kind, each.key) is not None for each in plan) == 4
    result = puller.pull(plan)
    assert (result.present, result.pulled) == (4, 6)


def test_two_pulls_into_one_node_at_once_end_with_one_whole_node(tmp_path: Path) -> None:
    source = MadeSource()
    plan = [_wanted(source.add(str(number))) for number in range(50)]
    pullers = [_puller(source, tmp_path / "node")[0] for _ in range(3)]
    results = in_parallel(lambda group: group[0].pull(plan), [[puller] for puller in pullers], jobs=3)
    assert all(result.complete for result in results)
    tier = NodeTier(tmp_path / "node", "default")
    assert all(tier.get(each.kind, each.key) is not None for each in plan)


def test_an_entry_that_holds_no_program_is_no_gap_in_a_node(tmp_path: Path) -> None:
    source = MadeSource()
    entry = source.add("a")
    log = entry.output("compile.log")
    assert log is not None
    source.programs[entry.key] = (replace(entry, outputs=(log,)), {})
    result = _puller(source, tmp_path / "node")[0].pull([_wanted(entry)])
    assert (result.pulled, result.complete) == (0, True)


def test_a_plan_that_has_no_room_is_refused_before_it_begins(tmp_path: Path) -> None:
    source = MadeSource()
    plan = [_wanted(source.add("a", 5000))]
    with pytest.raises(NodeFullError, match="NEURON_CACHE_NODE_MAX_BYTES"):
        _puller(source, tmp_path / "node", max_bytes=100)[0].pull(plan)
    assert source.fetched == []


def test_what_is_missing_is_named_in_the_plans_order() -> None:
    source = MadeSource(batch=2)
    there = [_wanted(source.add(str(number))) for number in range(5)]
    gone = [Wanted("default", each.kind, f"{number:064x}") for number, each in enumerate(there)]
    plan = [each for pair in zip(there, gone, strict=True) for each in pair]
    assert missing(source, plan) == gone
    assert missing(source, there) == []


def test_the_first_fault_ends_the_others_before_they_begin() -> None:
    stop = threading.Event()
    begun: list[int] = []

    def work(group: list[int]) -> None:
        begun.append(group[0])
        if group[0] == 0:
            raise Unreachable("gone")
        stop.wait(HANG_SECONDS)

    with suppress(Unreachable):
        in_parallel(work, [[number] for number in range(1000)], jobs=2, stop=stop)
    assert stop.is_set()
    assert len(begun) < 10
