"""Transports whose waits nobody can cut, such as a network file system that hangs: the job goes on without them."""

from __future__ import annotations

import threading
import time

import pytest

from client import remote as remote_module
from client.bounded import watched
from client.errors import Unreachable
from client.transports import patience
from client.transports.base import TooSlow
from client.transports.directory import DirectoryTransport
from client.transports.limits import DEFAULT_LIMITS
from client.transports.patience import Patience, current
from client.wire import Output
from tests.client.programs import compiled, document
from tests.fakes.waiting import HANG_SECONDS

OUTPUT = Output("model.neff", "0" * 64, 100 << 20)


def test_a_request_that_hangs_costs_the_job_its_patience_and_no_more():
    released = threading.Event()
    with pytest.raises(Unreachable, match="no answer within"):
        watched(lambda: released.wait(HANG_SECONDS), Patience(0.1))
    released.set()


def test_a_request_that_moves_may_take_longer_than_it_may_stand_still():
    def moving() -> str:
        for _ in range(12):
            time.sleep(0.05)
            current().arrived(memoryview(bytes(1 << 20)))
        return "all of it"

    assert watched(moving, Patience(0.3)) == "all of it"


def test_a_fetch_that_moves_more_slowly_than_the_compiler_is_given_up(monkeypatch):
    monkeypatch.setattr(patience, "LEAST_FETCH", 0.2)
    monkeypatch.setattr(patience, "WINDOW", 0.1)
    released = threading.Event()

    def crawling() -> None:
        current().pace(DEFAULT_LIMITS, OUTPUT, 0.5)
        while not released.wait(0.02):
            current().arrived(memoryview(bytes(100)))

    with pytest.raises(TooSlow):
        watched(crawling, Patience(10.0, can_compile=True))
    released.set()


def test_errors_and_results_come_back_as_they_are():
    def wrong() -> None:
        raise LookupError("as it is")

    assert watched(lambda: 7, Patience(5)) == 7
    with pytest.raises(LookupError, match="as it is"):
        watched(wrong, Patience(5))


def test_a_shared_folder_that_hangs_costs_no_job_its_result(tmp_path, make_cache, monkeypatch, caplog):
    monkeypatch.setattr(remote_module, "BUDGET", 0.3)
    monkeypatch.setattr(remote_module, "LOST_LIMIT", 0.1)
    released = threading.Event()

    class Hangs(DirectoryTransport):
        def entry(self, *arguments):
            released.wait(HANG_SECONDS)
            return super().entry(*arguments)

    (tmp_path / "shared").mkdir()
    cache = make_cache(Hangs(tmp_path / "shared", "default"))
    for number in range(3):
        assert cache.get_or_compile(document(f"{number}"), compiled).source == "compile"
    released.set()
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
