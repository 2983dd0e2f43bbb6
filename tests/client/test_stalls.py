"""File systems that do not answer: what waits for them goes on without, and comes back to them when they do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client import stalls
from client.node.files import Files
from client.node.watched import WatchedFiles
from client.record import append_record
from client.stalls import Place, StalledError
from tests.client.programs import compiled, document
from tests.support.silent import silent_file_system

if TYPE_CHECKING:
    from collections.abc import Iterator

METHODS = [name for name, value in vars(Files).items() if callable(value) and not name.startswith("_")]
UNUSED = {"set_mode", "remove_directory", "space", "touch"}
"""Calls that these jobs do not make, or after which they have no use for the tier."""
FOREVER = 60.0
"""Seconds that no test waits for: only a hang gets there."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "LIMIT", 0.2)
    monkeypatch.setattr(stalls, "AGAIN", 0.1)
    monkeypatch.setattr(Place, "_lost", 0.0)
    monkeypatch.setattr(stalls, "_places", {})


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What a file system waits for that stands still; it comes at the test's end at the latest."""
    answer = threading.Event()
    yield answer
    answer.set()


def test_a_call_that_returns_gives_what_it_returns_or_raises():
    place = Place("/somewhere")
    assert place.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        place.call(lambda: 1 // 0)
    assert not place.is_given_up


def test_a_call_that_does_not_return_is_given_up_and_the_place_is_used_again_once_it_did(stuck):
    place, late = Place("/mnt/gone"), threading.Event()
    with pytest.raises(StalledError, match="did not answer") as caught:
        place.call(stuck.wait, late=lambda _: late.set())
    assert caught.value.filename == "/mnt/gone"
    assert isinstance(caught.value, OSError)
    assert place.is_given_up
    called: list[int] = []
    with pytest.raises(StalledError):
        place.call(lambda: called.append(1))
    assert not called, "nothing is tried while a call has not come back"
    stuck.set()
    assert late.wait(FOREVER)
    assert place.call(lambda: 7) == 7


def test_a_place_that_stalls_again_and_again_is_given_up_for_good():
    place = Place("/mnt/shaky")
    for _ in range(stalls.MOST_STALLS):
        answer, late = threading.Event(), threading.Event()
        with pytest.raises(StalledError):
            place.call(answer.wait, late=lambda _, late=late: late.set())
        answer.set()
        assert late.wait(FOREVER)
    assert place.is_given_up


def test_a_call_that_moves_may_take_its_time():
    place, moved = Place("/mnt/slow"), iter(range(5))
    answer = threading.Event()

    def progress() -> int:
        number = next(moved, None)
        if number is None:
            answer.set()
        return number or 5

    assert place.call(lambda: answer.wait(FOREVER), moved=progress)


def test_what_a_late_call_opened_is_closed(stuck, tmp_path):
    class Slow(Files):
        opened = -1

        def open_directory(self, name: Any, parent: int | None = None) -> int:
            stuck.wait()
            self.opened = super().open_directory(name, parent)
            return self.opened

    files, place = Slow(), Place(str(tmp_path))
    watched = WatchedFiles(files, place)
    with pytest.raises(StalledError):
        watched.open_directory(tmp_path)
    stuck.set()
    for _ in range(1000):
        if files.opened >= 0 and not place.is_given_up and not Path(f"/proc/self/fd/{files.opened}").exists():
            return
        threading.Event().wait(0.01)
    pytest.fail("the descriptor stayed open")


def test_a_forked_child_has_workers_of_its_own():
    place = Place("/somewhere")
    place.call(lambda: None)  # leaves an idle worker in this process
    child = os.fork()
    if child == 0:
        os._exit(place.call(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_every_call_on_a_file_system_is_watched():
    assert {name for name in METHODS if name not in vars(WatchedFiles)} == {"may_stall"}


def test_a_disk_of_this_machine_is_used_without_a_thread_between(make_cache, tmp_path):
    cache = make_cache()
    cache.get_or_compile(document(), compiled)
    assert type(cache._mine().node._tier.tree.files) is Files


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("close", "may_stall")])
def test_a_job_ends_whatever_call_stands_still(make_cache, caplog, stuck, method):
    class Stalling(Files):
        def may_stall(self, path: str) -> bool:
            return True

    def stall(self: Files, *arguments: Any) -> Any:
        stuck.wait()
        raise OSError

    make_cache().get_or_compile(document("there"), compiled)
    setattr(Stalling, method, stall)
    cache = make_cache(files=Stalling())
    for name in ("there", "new", "newer"):
        assert cache.get_or_compile(document(name), compiled).neff
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (method not in UNUSED)
    for warning in warnings:
        assert "the file system did not answer" in warning
        assert "NEURON_CACHE_NODE_DIR" in warning


@pytest.mark.share(2)
@pytest.mark.parametrize("setting", ["RECORD", "SUMMARY", "TRUSTED_KEYS", "SIGNING_KEY", "CA_FILE", "TOKEN_FILE"])
def test_a_pipe_that_nobody_writes_or_reads_keeps_no_job(tmp_path, setting):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = _run({**_settings(setting), f"NEURON_CACHE_{setting}": str(pipe)}, tmp_path)
    assert done.stdout == "compile\ncompile\n", done.stderr
    assert f"NEURON_CACHE_{setting}" in done.stderr


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "setting", ["NODE_DIR", "RECORD", "SUMMARY", "TRUSTED_KEYS", "SIGNING_KEY", "CA_FILE", "TOKEN_FILE", "URL"]
)
def test_a_file_system_whose_server_is_gone_keeps_no_job(tmp_path, setting):
    with silent_file_system(tmp_path / "gone") as gone:
        named = f"file://{gone}/shared" if setting == "URL" else f"{gone}/file"
        done = _run({**_settings(setting), f"NEURON_CACHE_{setting}": named}, tmp_path)
    assert done.stdout == "compile\ncompile\n", done.stderr
    assert str(gone) in done.stderr
    if setting != "URL":
        assert f"NEURON_CACHE_{setting}" in done.stderr


def test_all_that_lies_on_a_file_system_that_is_gone_is_done_without(tmp_path):
    with silent_file_system(tmp_path / "gone") as gone:
        names = {"NODE_DIR": "node", "RECORD": "a/record", "SUMMARY": "b/summary", "TRUSTED_KEYS": "c/keys"}
        settings = {f"NEURON_CACHE_{name}": f"{gone}/{file}" for name, file in names.items()}
        done = _run({**settings, "NEURON_CACHE_URL": f"file://{gone}/shared"}, tmp_path)
    assert done.stdout == "compile\ncompile\n", done.stderr


def _settings(setting: str) -> dict[str, str]:
    """Return what else is set, so that ``setting`` is looked at."""
    given = {"NEURON_CACHE_URL": "https://127.0.0.1:9"}
    return {**given, "NEURON_CACHE_SIGNATURES": "require"} if setting == "TRUSTED_KEYS" else given


_JOB = """
import logging
from client import remote, stalls
stalls.LIMIT, stalls.AGAIN, remote.BUDGET, remote.LOST_LIMIT = 1.0, 0.2, 1.0, 0.5
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from client.cache import Cache
from tests.client.programs import compiled, document
cache = Cache.from_environment()
for name in ("a", "b"):
    print(cache.get_or_compile(document(name), compiled).source, flush=True)
"""


def _run(settings: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a job to its end, the interpreter's included."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-c", _JOB],
        env={**environ, **settings},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=FOREVER,
        check=True,
    )


def test_a_record_is_written_in_place_on_a_disk_of_this_machine(tmp_path):
    append_record(tmp_path / "plan", b"one\n")
    append_record(tmp_path / "plan", b"two\n")
    assert (tmp_path / "plan").read_bytes() == b"one\ntwo\n"
