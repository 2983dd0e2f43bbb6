"""What a shared cache that is gone, deaf or wrong may cost."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from client import remote as remote_module
from client.errors import Denied, LeaseLost, Refused, Unreachable
from client.names import Kind
from client.remote import UNAVAILABLE, Remote
from client.transports.base import Damaged
from client.transports.patience import current
from client.warnings import Notices
from client.wire import Granted, Holder
from tests.client.programs import compiled, document, entry_of
from tests.fakes.waiting import HANG_SECONDS

KEY = document().key
HOLDER = Holder("here", 1)
BUDGET = 12.0


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def remote(store, clock):
    return Remote(store, Notices(), met=lambda kind: None, clock=clock)


def _takes(clock: Clock, seconds: float, error: Exception | None = None) -> Any:
    def fault() -> None:
        clock.time += seconds
        if error is not None:
            raise error

    return fault


def _ask_everything(remote: Remote) -> None:
    outputs = compiled().outputs
    try:
        remote.fetch(Kind.GRAPH, KEY)
    except Damaged as error:
        remote.suspect(Kind.GRAPH, KEY, error.sha256)
    remote.acquire(Kind.GRAPH, KEY, HOLDER, wait_seconds=25, seen_generation=None, retry_failed=False, may_publish=True)
    remote.publish(entry_of(document(), outputs), outputs, None)
    remote.release(Kind.GRAPH, KEY, Granted("token", 1, 30), None)


def test_a_deaf_server_costs_a_job_of_many_programs_twelve_seconds_at_most(store, clock, remote):
    for method in ("fetch", "entry", "acquire", "publish", "release", "suspect", "close"):
        store.faults[method] = _takes(clock, 5.0, Unreachable("no answer within 5 s"))
    for _ in range(50):
        _ask_everything(remote)
    assert clock.time <= BUDGET


def test_a_server_that_does_not_exist_costs_a_few_attempts(store, clock, remote):
    for method in ("fetch", "acquire", "publish", "release"):
        store.faults[method] = _takes(clock, 2.0, Unreachable("no connection within 2 s"))
    for _ in range(50):
        _ask_everything(remote)
    assert clock.time <= BUDGET
    assert store.calls.total() <= 4


def test_a_server_that_only_sends_wrong_bytes_slowly_is_given_up(store, clock, remote):
    outputs = compiled().outputs
    store.publish(entry_of(document(), outputs), outputs, None)
    store.faults["fetch"] = lambda: (_takes(clock, 3.0)(), store.damage(Kind.GRAPH, KEY))
    store.faults["suspect"] = _takes(clock, 0.0, Unreachable("no"))
    for _ in range(50):
        try:
            remote.fetch(Kind.GRAPH, KEY)
        except Damaged:
            continue
    assert clock.time <= BUDGET


def test_a_server_that_comes_back_is_used_again_after_one_request_in_the_background(store, clock, remote):
    store.faults["fetch"] = _takes(clock, 5.0, Unreachable("deaf"))
    for _ in range(5):
        assert remote.fetch(Kind.GRAPH, KEY) is UNAVAILABLE
    del store.faults["fetch"]
    clock.time += 31
    assert remote.fetch(Kind.GRAPH, KEY) is UNAVAILABLE, "the job does not wait to find out"
    deadline = time.monotonic() + HANG_SECONDS
    while remote.fetch(Kind.GRAPH, KEY) is UNAVAILABLE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert store.calls["entry"] == 0


def test_a_server_that_answers_in_the_background_and_then_stalls_again_costs_little_more(store, clock, remote):
    store.faults["fetch"] = _takes(clock, 5.0, Unreachable("stalled in mid-body"))
    for _ in range(5):
        remote.fetch(Kind.GRAPH, KEY)
    assert remote.budget <= 5.0
    del store.faults["fetch"]
    clock.time += 31
    remote.fetch(Kind.GRAPH, KEY)
    deadline = time.monotonic() + HANG_SECONDS
    while remote.fetch(Kind.GRAPH, KEY) is UNAVAILABLE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    seen: list[float] = []
    store.faults["fetch"] = lambda: seen.append(current().quiet)
    remote.fetch(Kind.GRAPH, KEY)
    assert seen == [remote_module.TRIAL]


def test_what_a_job_has_saved_it_may_lose_again(store, clock, remote):
    outputs = compiled().outputs
    store.publish(entry_of(document(), outputs), outputs, None)  # 1.5 s of compiling
    store.faults["fetch"] = _takes(clock, 4.0, Unreachable("no answer"))
    remote.fetch(Kind.GRAPH, KEY)
    del store.faults["fetch"]
    before = remote.budget
    remote.fetch(Kind.GRAPH, KEY)
    assert remote.budget == pytest.approx(before + 1.5)


def test_a_request_may_stand_still_no_longer_than_the_job_can_afford(store, clock, remote):
    seen: list[float] = []
    store.faults["fetch"] = lambda: seen.append(current().quiet)
    remote.fetch(Kind.GRAPH, KEY)
    store.faults["acquire"] = _takes(clock, 4.0, Unreachable("no answer"))
    remote.acquire(Kind.GRAPH, KEY, HOLDER, wait_seconds=0, seen_generation=None, retry_failed=False, may_publish=True)
    remote.fetch(Kind.GRAPH, KEY)
    assert seen == [remote_module.BUDGET, remote_module.BUDGET - 4.0]


def test_reading_goes_on_where_only_writing_is_denied(store, remote):
    store.faults["acquire"] = _takes(Clock(), 0, Denied("403"))
    for _ in range(5):
        _ask_everything(remote)
    assert store.calls["acquire"] == 1
    assert store.calls["publish"] == 0
    assert store.calls["fetch"] == 5


def test_a_wrong_token_is_tried_once_and_told_once(store, remote, caplog):
    for method in ("fetch", "acquire", "publish"):
        store.faults[method] = _takes(Clock(), 0, Denied("401"))
    for _ in range(5):
        _ask_everything(remote)
    assert store.calls.total() == 1
    assert len(caplog.records) == 1


def test_nothing_is_waited_for_before_the_server_has_answered_once(store, remote):
    options: dict[str, Any] = {"seen_generation": None, "retry_failed": False, "may_publish": True}
    remote.acquire(Kind.GRAPH, KEY, HOLDER, wait_seconds=25, **options)
    remote.acquire(Kind.GRAPH, document("other").key, HOLDER, wait_seconds=25, **options)
    assert [asked["wait_seconds"] for asked in store.asked] == [0, 25]


def test_time_spent_waiting_for_others_is_no_loss(store, clock, remote):
    remote.fetch(Kind.GRAPH, KEY)
    store.faults["acquire"] = _takes(clock, 26.0, Unreachable("the server went away while we waited"))
    options: dict[str, Any] = {"seen_generation": None, "retry_failed": False, "may_publish": True}
    remote.acquire(Kind.GRAPH, KEY, HOLDER, wait_seconds=25, living_holder=True, **options)
    del store.faults["acquire"]
    assert remote.acquire(Kind.GRAPH, KEY, HOLDER, wait_seconds=25, **options) is not UNAVAILABLE


def test_a_lost_lease_says_nothing_against_the_server(store, remote, caplog):
    store.faults["release"] = _takes(Clock(), 0, LeaseLost("not yours"))
    for _ in range(5):
        remote.release(Kind.GRAPH, KEY, Granted("token", 1, 30), None)
    assert store.calls["release"] == 5
    assert not caplog.records


def test_an_upload_that_does_not_end_lets_the_job_go_on(store, monkeypatch, caplog):
    monkeypatch.setattr(remote_module, "PUBLISH_LIMIT", 0.1)
    ended = threading.Event()
    store.faults["publish"] = lambda: ended.wait(HANG_SECONDS)
    outputs = compiled().outputs
    remote = Remote(store, Notices(), met=lambda kind: None)
    assert remote.publish(entry_of(document(), outputs), outputs, None) is UNAVAILABLE
    assert "has not ended" in caplog.text
    ended.set()


def test_a_quota_of_leases_costs_leases_and_nothing_else(store, clock, remote):
    """Reads go on: only the right to compile for all was refused."""
    refused = Refused("this token holds 4096 leases", status=429, name="too_many_leases")
    store.faults["acquire"] = _takes(clock, 0.0, refused)
    for _ in range(5):
        answer = remote.acquire(
            Kind.GRAPH, KEY, HOLDER, wait_seconds=0, seen_generation=None, retry_failed=False, may_publish=True
        )
        assert answer is UNAVAILABLE
    assert remote.fetch(Kind.GRAPH, KEY) is None
