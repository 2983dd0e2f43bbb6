"""The direct lease under any order of looks, grabs, heartbeats, ends, deaths and pauses of several contenders.

A contender's look and its grab are steps of their own, because on a real folder anything may happen in between.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from client.errors import Failure, LeaseLost
from client.layout import lease_generation
from client.names import Kind
from client.transports.direct_lease import TTL_SECONDS, DirectLease, Standing, Stillness, Waiting
from client.transports.entry_folder import EntryFolder
from client.transports.shared_files import SharedFolder
from client.wire import Granted, Holder

FAILURES = (None, Failure("diagnosis", "no"), Failure("transient", "killed"))


class ClockedFolder:
    """A real folder whose clock is the test's."""

    def __init__(self, root: Path) -> None:
        self.time = 1_000_000.0
        waiting = Waiting(lambda: self.time, lambda _: None, lambda low, _: low)
        self._folder = EntryFolder(SharedFolder(root), "default", Kind.GRAPH, "a" * 64, waiting)
        self._folder.make()
        self.names, self.read, self.remove = self._folder.names, self._folder.read, self._folder.remove

    def now(self) -> float:
        return self.time

    def create(self, name: str, data: bytes) -> bool:
        created = self._folder.create(name, data)
        if created:
            os.utime(self._folder.path / name, (self.time, self.time))
        return created

    def replace(self, name: str, data: bytes) -> None:
        self._folder.replace(name, data)
        os.utime(self._folder.path / name, (self.time, self.time))


@dataclass
class Look:
    """What a contender saw, and when."""

    standing: Standing | None
    time: float
    is_over: bool


class Contenders(RuleBasedStateMachine):
    """Contenders for a lease in `open_store`, whose time is `ClockedFolder.time`."""

    looks = Bundle("looks")
    grants = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.store = self.open_store()
        stillness = Stillness(lambda: self.store.time)
        self.lease = DirectLease(self.store, stillness)
        self.granted: list[Granted] = []
        # generation -> time of its last heartbeat, and whether it has ended: what is true, by the test's own book
        self.beats: dict[int, float] = {}
        self.ended: set[int] = set()

    def open_store(self) -> Any:
        self.root = Path(tempfile.mkdtemp())
        return ClockedFolder(self.root)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @property
    def highest(self) -> int:
        return max(self.beats, default=0)

    @rule(seconds=strategies.sampled_from([0.5, 9.0, 29.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.store.time += seconds

    @rule(target=looks)
    def look(self) -> Look:
        standing = self.lease.current()
        assert (0 if standing is None else standing.generation) == self.highest
        is_over = standing is None or self.lease.is_over(standing, self.store.now())
        if standing is not None:
            ran_out = self.beats[standing.generation] + TTL_SECONDS < self.store.time
            assert is_over == (ran_out or standing.generation in self.ended)
        return Look(standing, self.store.now(), is_over)

    @rule(target=grants, look=looks, host=strategies.sampled_from(["one", "two"]))
    def grab(self, look: Look, host: str) -> object:
        if not look.is_over:
            return multiple()
        granted = self.lease.succeed(look.standing, Holder(host, 1), look.time)
        seen = 0 if look.standing is None else look.standing.generation
        # whoever looked last gets it; whoever looked before somebody else's grant never does
        assert (granted is not None) == (seen == self.highest)
        if granted is None:
            return multiple()
        assert granted.generation == self.highest + 1
        self.granted.append(granted)
        self.beats[granted.generation] = self.store.time
        return granted

    @rule(grant=grants)
    def renew(self, grant: Granted) -> None:
        if grant.generation == self.highest and grant.generation not in self.ended:
            self.lease.renew(grant)
            self.beats[grant.generation] = self.store.time
        else:
            with pytest.raises(LeaseLost):
                self.lease.renew(grant)

    @rule(grant=grants, failure=strategies.sampled_from(FAILURES))
    def end(self, grant: Granted, failure: Failure | None) -> None:
        counts = grant.generation == self.highest and grant.generation not in self.ended
        self.lease.end(grant, failure)
        standing = self.lease.current()
        assert standing is not None
        if counts:
            self.ended.add(grant.generation)
            assert standing.failure == failure

    @rule(grant=consumes(grants))
    def die(self, grant: Granted) -> None:
        """Nothing more is heard of a holder."""

    @rule()
    def tidy(self) -> None:
        self.lease.tidy()
        generations = [lease_generation(name) for name in self.store.names()]
        assert [number for number in generations if number is not None] == ([self.highest] if self.highest else [])

    @invariant()
    def no_generation_is_granted_twice(self) -> None:
        generations = [grant.generation for grant in self.granted]
        assert generations == sorted(set(generations))

    @invariant()
    def nothing_is_left_of_writing(self) -> None:
        assert all(lease_generation(name) is not None for name in self.store.names())


TestContenders = Contenders.TestCase
TestContenders.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
