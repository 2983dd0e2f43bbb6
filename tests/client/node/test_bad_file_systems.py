"""Whatever the file system under the node tier does, a job gets its programs, whole, and hears of each cause once."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client.artifact import Compiled
from client.cache import Cache
from client.settings import Settings
from tests.client.programs import build, document
from tests.fakes.waiting import HANG_SECONDS
from tests.support.faulty_files import (
    CALLS,
    HARMLESS,
    FaultyFiles,
    ForgetfulFiles,
    LateFiles,
    LostAnswers,
    LyingLocks,
    StuckLocks,
    TornFiles,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.node.files import Files

pytestmark = pytest.mark.once

CODES = (
    errno.ENOSPC,
    errno.EROFS,
    errno.EACCES,
    errno.ESTALE,
    errno.EBUSY,
    errno.EMLINK,
    errno.EXDEV,
    errno.ENOLCK,
    errno.EIO,
    errno.ENOENT,
    errno.EDQUOT,
)
DOCUMENTS = [document(f"program {number}") for number in range(3)]


UNPRIVILEGED = """
import json, os, sys
from pathlib import Path
from client.cache import Cache
from client.settings import Settings
from tests.client.programs import compiled, document

def use(tier):
    cache = Cache(Settings(node_dir=Path(tier)))
    return [cache.get_or_compile(document(f"program {number}"), compiled).source for number in range(3)]

# import all there is while we still may: the user need not be able to read where Python lies
use(sys.argv[1]), use(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(json.dumps(use(sys.argv[2])))
"""


class Job:
    """Runs of one program's job on one tier; knows every build that was ever made of a program."""

    def __init__(self, tier: Path) -> None:
        self.tier = tier
        self.built: dict[str, set[bytes]] = {each.key: set() for each in DOCUMENTS}
        self.compiles = 0

    def run(self, files: Files | None = None, **settings: object) -> list[str]:
        """Use all programs once; return where they came from. What is handed out is a whole build of that program."""
        cache = Cache(Settings(node_dir=self.tier, **settings), files=files)  # type: ignore[arg-type]
        sources = []
        for each in DOCUMENTS:
            made = cache.get_or_compile(each, lambda key=each.key: self._compile(key))
            assert made.neff in self.built[each.key]
            assert made.entry.key == each.key
            sources.append(made.source)
        cache.close()
        return sources

    def _compile(self, key: str) -> Compiled:
        self.compiles += 1
        neff = build()
        self.built[key].add(neff)
        return Compiled({"model.neff": neff}, 1.5)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "tier")


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that other users can reach; pytest's own is private."""
    path = Path(tempfile.mkdtemp(prefix="neff-cache-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def warned_once_for_each_cause(caplog: pytest.LogCaptureFixture) -> None:
    said = Counter(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert not [message for message, count in said.items() if count > 1]
    assert said.total() <= 3, f"one job has three causes at most: reading, writing, a damaged entry; {said}"


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", [name for name in CALLS if name not in HARMLESS])
@pytest.mark.share(50)
def test_a_call_that_always_fails_costs_hits_only(job, caplog, call, code):
    files = FaultyFiles([call], code)
    assert job.run(files) == ["compile"] * 3
    warned_once_for_each_cause(caplog)
    caplog.clear()
    job.run()  # sound again: what was left behind hurts nobody
    assert job.run() == ["disk"] * 3
    job.run(FaultyFiles([call], code))
    warned_once_for_each_cause(caplog)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", [name for name in CALLS if name not in HARMLESS])
@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.share(30)
def test_calls_that_fail_now_and_then_leave_nothing_half_written(job, caplog, call, code, every):
    for _ in range(3):
        caplog.clear()
        job.run(FaultyFiles([call], code, lambda number: number % every == 0))
        warned_once_for_each_cause(caplog)
    job.run()
    assert job.run() == ["disk"] * 3


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_file_system_on_which_nothing_works_any_more_costs_hits_only(job, caplog, code):
    job.run()
    files = FaultyFiles([name for name in CALLS if name not in HARMLESS], code)
    assert job.run(files) == ["compile"] * 3
    assert files.failed
    warned_once_for_each_cause(caplog)
    assert job.run() == ["disk"] * 3


@pytest.mark.parametrize("make", [TornFiles, ForgetfulFiles])
def test_a_torn_entry_is_never_handed_out(job, caplog, make):
    for _ in range(3):
        assert job.run(make()) == ["compile"] * 3
    job.run()
    assert job.run() == ["disk"] * 3


def test_a_full_disk_leaves_no_temporary_files(job):
    job.run(TornFiles())
    assert [path for path in job.tier.rglob("*") if path.name.startswith("tmp-")] == []


def test_entries_that_show_late_are_used_as_soon_as_they_show(job, caplog):
    files = LateFiles()
    assert job.run(files) == ["compile"] * 3
    job.run(files)
    assert job.run(files) == ["disk"] * 3
    warned_once_for_each_cause(caplog)


def test_a_rename_whose_answer_was_lost_counts(job, caplog):
    assert job.run(LostAnswers()) == ["compile"] * 3
    assert job.run(LostAnswers()) == ["disk"] * 3
    assert not caplog.records


def test_locks_that_lie_cost_compiles_and_all_still_agree(job):
    threads = [threading.Thread(target=job.run, args=(LyingLocks(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert job.run() == ["disk"] * 3


def test_locks_that_never_come_free_are_waited_for_no_longer_than_set(job, caplog):
    assert job.run(StuckLocks(), wait_limit=0.05) == ["compile"] * 3
    warned_once_for_each_cause(caplog)
    assert job.run() == ["disk"] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
@pytest.mark.parametrize(
    ("path", "mode", "expected"),
    [
        ("", 0o500, ["disk"] * 3),
        ("", 0o000, ["compile"] * 3),
        ("v1", 0o500, ["disk"] * 3),
        ("v1", 0o000, ["compile"] * 3),
        ("v1/default/graph", 0o500, ["disk"] * 3),
        ("v1/default/graph", 0o300, ["compile"] * 3),
        ("v1/default/graph/locks", 0o000, ["disk"] * 3),
    ],
)
def test_a_user_without_rights_on_a_level_runs_all_the_same(base, path, mode, expected):
    """In a process of that user: root sees no permission errors."""
    job = Job(base / "tier")
    job.run()
    (job.tier / "v1" / "default" / "graph" / "locks").mkdir(exist_ok=True)
    for below in [job.tier, *job.tier.rglob("*")]:
        os.chown(below, 65534, 65534)
    (job.tier / path).chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(base / "own"), str(job.tier)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
