"""Other caches' directories and the shared cache, while jobs write and processes die.

Run with ``-s`` for the table of kills.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from client.cli.main import app
from tests.fakes.waiting import HANG_SECONDS
from tests.support import foreign_trees
from tests.support.crash_export import CALLS
from tests.support.foreign_trees import TARGET, VERSION
from tests.support.jobs import job_environment
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.foreign_trees import ForeignEntry
    from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
HOST = ("--compiler-version", VERSION, "--target", TARGET)
ALL = (*HOST, "--compiled-after", "any")
LIMIT_SECONDS = HANG_SECONDS
MOST_STEPS = 100


def _run(environment: dict[str, str], *words: str) -> Any:
    """Run ``neff-cache words… --json`` as a user does, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "client.cli", *words, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Forks:
    """Commands that die at a step, forked from one process that has everything imported."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crash_export"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def run(self, words: list[str], names: Path, *, last: int = 0) -> int:
        """Run a command that dies before its ``last``-th change to the disk; return its status as `subprocess` does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"words": words, "last": last, "names": str(names)}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.parametrize("label", ["npc", "libtorch-lite", "torchneuron"])
@pytest.mark.share(1)
def test_an_export_killed_at_any_step_leaves_nothing_that_the_other_cache_would_take(
    label: str, tmp_path: Path
) -> None:
    here, shared, plan = tmp_path / "here", tmp_path / "shared", tmp_path / "plan.jsonl"
    foreign_trees.made(label, "a").write(here)
    environment = job_environment(tmp_path / "node", str(shared))
    _run(environment, "import", str(here), "--layout", label, *ALL, "--plan", str(plan))
    whole = foreign_trees.taken_for_complete(label, here)
    forks = Forks(environment)
    rows = []
    try:
        for step in range(1, MOST_STEPS):
            there, names = tmp_path / str(step), tmp_path / "names"
            names.unlink(missing_ok=True)
            words = ["export", str(plan), str(there), "--layout", label, "--jobs", "1"]
            status = forks.run(words, names, last=step)
            found = foreign_trees.taken_for_complete(label, there)
            assert all(whole[name] == files for name, files in found.items()), (step, status)
            # the next run finishes it, and takes away what the dead one left as soon as that is old
            for path in foreign_trees.leftovers(there):
                os.utime(path, (1, 1))
            assert CliRunner().invoke(app, words, env={"NEURON_CACHE_URL": str(shared)}).exit_code == 0
            assert foreign_trees.taken_for_complete(label, there) == whole
            assert foreign_trees.leftovers(there) == []
            shutil.rmtree(there)
            if status == 0:
                break
            assert status == -signal.SIGKILL
            rows.append((step, names.read_text().strip(), len(found)))
        else:
            pytest.fail(f"the export did not end within {MOST_STEPS} steps")
    finally:
        forks.close()
    head = f"{label}: killed before each of {len(rows)} steps; entries that the other cache takes, of 1, whole"
    print("", head, *(f"{step:5}  {name:8} {number}" for step, name, number in rows), sep="\n")  # noqa: T201 - for -s
    assert {name for _, name, _ in rows} >= {"open", "write", "fsync", "link" if label == "torchneuron" else "rename"}
    assert {name for _, name, _ in rows} <= set(CALLS)
    assert {number for *_, number in rows} == {0, 1}


@contextmanager
def _watching(environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "client.cli", "sync", "--watch", "--interval", "0.2", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_SECONDS)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _soon(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def _write_as_a_job(entry: ForeignEntry, root: Path) -> None:
    """Write an entry as the Neuron Persistent Cache does: under its lock, in place, the marker last."""
    folder = root / entry.folder
    folder.mkdir(parents=True)
    lock = folder / "model.hlo_module.pb.lock"
    lock.touch()
    for file, content in entry.files.items():
        with (folder / file).open("wb") as out:
            for start in range(0, len(content), 400):
                out.write(content[start : start + 400])
                out.flush()
                time.sleep(0.01)
    lock.unlink()


def _look(trees: list[Path], whole: dict[str, dict[str, bytes]], torn: list[str], ended: threading.Event) -> None:
    """Note what stands as complete in a tree, at any moment, and is not what its job wrote."""
    while not ended.wait(0.02):
        for tree in trees:
            for folder, files in foreign_trees.taken_for_complete("npc", tree).items():
                if {name: files[name] for name in files if not name.endswith(".lock")} != whole[folder]:
                    torn.append(folder)


def test_two_nodes_stay_in_step_while_a_job_writes_on_each(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        trees = [tmp_path / "first", tmp_path / "second"]
        entries = [[foreign_trees.npc(f"{node}-{number}") for number in range(4)] for node in range(2)]
        whole = {entry.folder: entry.files for group in entries for entry in group}
        torn: list[str] = []
        ended = threading.Event()

        def job(node: int) -> None:
            trees[node].mkdir()
            for entry in entries[node]:
                _write_as_a_job(entry, trees[node])

        threads = [threading.Thread(target=job, args=(node,)) for node in range(2)]
        looking = threading.Thread(target=_look, args=(trees, whole, torn, ended))
        environment = job_environment(tmp_path / "node", server.url, server.config)
        words = ("--layout", "npc", "--pull", "--push", *HOST)
        with (
            _watching(environment, str(trees[0]), *words) as first,
            _watching(environment, str(trees[1]), *words) as second,
        ):
            for thread in (*threads, looking):
                thread.start()
            try:
                for thread in threads:
                    thread.join(LIMIT_SECONDS)
                _soon(
                    lambda: all(foreign_trees.taken_for_complete("npc", tree) == whole for tree in trees),
                    "the trees are not in step",
                )
            finally:
                ended.set()
                looking.join(LIMIT_SECONDS)
            for process in (first, second):
                process.send_signal(signal.SIGTERM)
            outputs = [process.communicate(timeout=LIMIT_SECONDS) for process in (first, second)]
            assert [first.returncode, second.returncode] == [0, 0], outputs
        assert torn == []
        assert all(foreign_trees.leftovers(tree) == [] for tree in trees)
        assert all("pushed" in output and "pulled" in output for output, _ in outputs)
        assert _run(environment, "sync", str(trees[0]), *words)["pushed"]["pushed"] == 0


@pytest.mark.soak
def test_an_outage_of_the_server_is_told_once_and_outlived(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    first, second = foreign_trees.torchneuron("a"), foreign_trees.torchneuron("b")
    first.write(tree)

    def stored(server: Server) -> int:
        return len(server.get("/v1/default/entries?kind=foreign")["entries"])

    with running_server(tmp_path / "server") as server:
        port = server.url.rpartition(":")[2]
        environment = job_environment(tmp_path / "node", server.url, server.config)
        with _watching(environment, str(tree), "--layout", "torchneuron", "--push", *ALL) as process:
            _soon(lambda: stored(server) == 1, "the first entry was not pushed")
            server.stop()
            second.write(tree)
            assert process.stderr is not None
            first_words = process.stderr.readline()
            with running_server(tmp_path / "server", "--port", port) as again:
                _soon(lambda: stored(again) == 2, "the second entry was not pushed")
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    assert "trying again until it works" in first_words
    assert errors.splitlines() == ["neff-cache: it works again"]


def test_what_a_job_wrote_last_is_pushed_when_its_pod_ends(tmp_path: Path) -> None:
    tree, shared = tmp_path / "tree", tmp_path / "shared"
    foreign_trees.npc("a").write(tree)
    environment = job_environment(tmp_path / "node", str(shared))
    words = [str(tree), "--layout", "npc", "--push", *HOST, "--interval", "3600"]
    with _watching(environment, *words) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("1 pushed")
        foreign_trees.npc("b").write(tree)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    assert output.startswith("1 pushed")
