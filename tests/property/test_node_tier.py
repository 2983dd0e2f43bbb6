"""Whatever is stored, read, damaged, evicted and left behind, in whatever order: never a wrong byte, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from client.names import Kind
from client.node.eviction import Evictor
from client.node.tier import DamagedEntryError, NodeTier
from client.wire import Entry
from tests.client.programs import document, entry_of

PROGRAMS = [document(f"program {number}") for number in range(5)]
programs = st.sampled_from(PROGRAMS)
FILES = st.sampled_from(["model.neff", "entry.json"])


class NodeTierMachine(RuleBasedStateMachine):
    """The tier beside a dictionary of what must be in it; two objects, as of two processes, work on one directory."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="neff-cache-property-"))
        self.tiers = [NodeTier(self.root / "tier", "default") for _ in range(2)]
        self.tiers[0].tree.claim()
        self.good: dict[str, bytes] = {}
        self.damaged: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    def _path(self, key: str) -> Path:
        return self.root / "tier" / "v1" / "default" / "graph" / key[:2] / key

    @rule(program=programs, neff=st.binary(max_size=200), number=st.integers(0, 1))
    def put(self, program, neff, number) -> None:
        ours = self.tiers[number].put(entry_of(program, {"model.neff": neff}), neff)
        assert ours == (program.key not in self.good and program.key not in self.damaged)
        if ours:
            self.good[program.key] = neff

    @rule(program=programs, number=st.integers(0, 1))
    def get(self, program, number) -> None:
        key = program.key
        try:
            stored = self.tiers[number].get(Kind.GRAPH, key)
        except DamagedEntryError:
            assert key in self.damaged
            self.damaged.remove(key)
            assert not self._path(key).exists()
        else:
            assert key not in self.damaged
            assert (None if stored is None else stored.neff) == self.good.get(key)

    @rule(program=programs, name=FILES, position=st.floats(0, 1), bit=st.integers(0, 7))
    def flip(self, program, name, position, bit) -> None:
        path = self._path(program.key) / name
        if program.key not in self.good or not path.stat().st_size:
            return
        content = bytearray(path.read_bytes())
        content[min(int(position * len(content)), len(content) - 1)] ^= 1 << bit
        path.write_bytes(content)
        self._suspect(program.key)

    @rule(program=programs, name=FILES, share=st.floats(0, 1))
    def cut(self, program, name, share) -> None:
        path = self._path(program.key) / name
        if program.key in self.good:
            os.truncate(path, int(path.stat().st_size * share))
            self._suspect(program.key)

    @rule(program=programs, name=FILES)
    def lose(self, program, name) -> None:
        if program.key in self.good:
            (self._path(program.key) / name).unlink()
            self._suspect(program.key)

    @rule(program=programs)
    def remove(self, program) -> None:
        self.tiers[0].remove(Kind.GRAPH, program.key)
        self.good.pop(program.key, None)
        self.damaged.discard(program.key)

    @rule(max_bytes=st.sampled_from([0, 20_000, 40_000, 1 << 30]))
    def evict(self, max_bytes) -> None:
        Evictor(self.tiers[0].tree, max_bytes).sweep()
        gone = {key for key in [*self.good, *self.damaged] if not self._path(key).exists()}
        if max_bytes == 1 << 30:
            assert not gone
        if max_bytes == 0:
            assert len(gone) == len(self.good) + len(self.damaged)
        for key in gone:
            self.good.pop(key, None)
            self.damaged.discard(key)

    @rule(program=programs, neff=st.binary(max_size=50))
    def leave_half_an_entry(self, program, neff) -> None:
        """Act as a process that was killed while it wrote."""
        half = self._path(program.key).parent / f"tmp-1-{len(neff)}"
        if half.parent.exists():
            half.mkdir(exist_ok=True)
            (half / "model.neff").write_bytes(neff)

    @invariant()
    def good_entries_stay(self) -> None:
        if hasattr(self, "good"):
            assert all(self._path(key).is_dir() for key in self.good)

    def _suspect(self, key: str) -> None:
        """Take an entry from the good ones if what was done to its files can be seen in them at all.

        A bit of entry.json may be one that says nothing about the program (its producer's name, say).
        """
        neff = self.good.pop(key)
        whole = entry_of(next(program for program in PROGRAMS if program.key == key), {"model.neff": neff})
        if _means_the_same(self._path(key), whole.output(), neff):
            self.good[key] = neff
        else:
            self.damaged.add(key)


def _means_the_same(path: Path, output: object, neff: bytes) -> bool:
    """Judge an entry by other means than the tier's: read both files plainly and compare."""
    try:
        entry = Entry.from_json(json.loads((path / "entry.json").read_bytes()))
        program = (path / "model.neff").read_bytes()
    except (OSError, ValueError):
        return False
    named = (entry.project, entry.kind, entry.key, entry.output())
    return named == ("default", Kind.GRAPH, path.name, output) and program == neff


TestNodeTier = NodeTierMachine.TestCase
TestNodeTier.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
