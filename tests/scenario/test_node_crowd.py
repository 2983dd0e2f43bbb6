"""A node full of processes that all want the same programs at once: one compile each, and no more at a time than set.

The full figures (64 processes, 20 keys; 50 rounds with half of them killed) are for `make soak`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 0.05
FULL = [pytest.mark.soak, pytest.mark.timeout(1800)]


@dataclass
class Crowd:
    """What a crowd did: results of those that lived to their end, their numbers, and all compilers in order."""

    folder: Path
    results: dict[int, dict]
    killed: set[int]
    compilers: list[tuple[str, int]]
    seconds: float

    def most_at_once(self) -> int:
        """Return how many compilers ran at once whose owners lived: those of the dead end a little later."""
        most = now = 0
        for what, owner in self.compilers:
            if owner not in self.killed:
                now += 1 if what == "+" else -1
                most = max(most, now)
        return most

    def digests(self) -> set[tuple[tuple[str, str], ...]]:
        return {tuple(sorted(result["digests"].items())) for result in self.results.values()}

    def compiled(self) -> int:
        return len([what for what, _ in self.compilers if what == "+"])


def crowd(folder: Path, processes: int, keys: int, slots: int, *, kills: int = 0, seed: int = 0) -> Crowd:
    for stale in folder.glob("results/*"):
        stale.unlink()
    log = folder / "compilers"
    log.unlink(missing_ok=True)
    arguments = map(str, [folder, processes, keys, slots, SECONDS, kills, seed])
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.crowd", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=450,
        check=True,
    )
    said = json.loads(done.stdout)
    ends = {int(number): status for number, status in said["ends"].items()}
    killed = {number for number, status in ends.items() if status == signal.SIGKILL}
    assert {status for number, status in ends.items() if number not in killed} <= {0}, done.stderr
    assert done.stderr == ""
    results = {int(path.name): json.loads(path.read_text()) for path in folder.glob("results/*")}
    compilers = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return Crowd(folder, results, killed, [(what, int(owner)) for what, owner in compilers], said["seconds"])


@pytest.mark.parametrize(
    ("processes", "keys", "slots"), [(12, 5, 2), pytest.param(64, 20, 4, marks=FULL)], ids=["share", "full"]
)
def test_each_program_is_compiled_once_however_many_ask_and_slots_are_kept(tmp_path, processes, keys, slots):
    done = crowd(tmp_path, processes, keys, slots)
    assert len(done.results) == processes
    assert len(done.digests()) == 1
    assert done.compiled() == keys
    assert done.most_at_once() <= slots
    assert {result["errors"] for result in done.results.values()} == {0}
    left = [path.name for path in (tmp_path / "node").rglob("*") if path.name.startswith(("tmp-", "w-", "r-"))]
    assert left == []
    sys.stdout.write(f"\n{processes} processes, {keys} keys: {done.seconds:.2f} s, {done.compiled()} compiles\n")


@pytest.mark.parametrize(
    ("rounds", "processes", "keys", "slots"),
    [(2, 12, 5, 2), pytest.param(50, 64, 20, 4, marks=FULL)],
    ids=["share", "full"],
)
def test_processes_that_are_killed_take_nothing_from_the_others(tmp_path, rounds, processes, keys, slots):
    killed = compiles = most = 0
    seconds = 0.0
    for seed in range(rounds):
        folder = tmp_path / f"round-{seed}"
        folder.mkdir()
        done = crowd(folder, processes, keys, slots, kills=processes // 2, seed=seed)
        assert len(done.results) >= processes // 2
        assert len(done.digests()) == 1
        # a killed process wastes the compile that it was at, and no other
        assert keys <= done.compiled() <= keys + len(done.killed)
        assert done.most_at_once() <= slots
        killed, compiles, seconds = killed + len(done.killed), compiles + done.compiled(), seconds + done.seconds
        most = max(most, done.most_at_once())
        again = crowd(folder, 2, keys, slots)
        assert again.compiled() == 0
        assert again.digests() == done.digests()
    sys.stdout.write(
        f"\n{rounds} rounds, {killed} killed, {compiles} compiles of {rounds * keys} programs, at most {most} at once, "
        f"{seconds:.0f} s\n"
    )
