from __future__ import annotations

import threading
import time

import pytest

from client.single_flight import SingleFlight
from tests.fakes.waiting import HANG_SECONDS


class SharedError(Exception):
    pass


def test_followers_take_over_when_the_leader_was_interrupted():
    flights: SingleFlight[str] = SingleFlight(shared=(SharedError,))
    leading, may_end = threading.Event(), threading.Event()
    results: list[tuple[str, bool]] = []

    def interrupted() -> str:
        leading.set()
        may_end.wait(HANG_SECONDS)
        raise KeyboardInterrupt

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            flights.run("key", interrupted)

    leader = threading.Thread(target=lead)
    leader.start()
    assert leading.wait(HANG_SECONDS)
    follower = threading.Thread(target=lambda: results.append(flights.run("key", lambda: "mine")))
    follower.start()
    time.sleep(0.05)
    may_end.set()
    leader.join(HANG_SECONDS)
    follower.join(HANG_SECONDS)
    assert results == [("mine", False)]


def test_a_shared_error_reaches_all_and_is_not_kept():
    flights: SingleFlight[str] = SingleFlight(shared=(SharedError,))
    barrier = threading.Barrier(4)
    runs: list[int] = []
    errors: list[Exception] = []

    def fail() -> str:
        runs.append(1)
        time.sleep(0.2)
        raise SharedError

    def ask() -> None:
        barrier.wait(HANG_SECONDS)
        try:
            flights.run("key", fail)
        except SharedError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert len(runs) == 1
    assert len(errors) == 4
    assert flights.run("key", lambda: "later") == ("later", False)


def test_other_keys_do_not_wait():
    flights: SingleFlight[str] = SingleFlight()
    assert flights.run("outer", lambda: flights.run("inner", lambda: "value")[0]) == ("value", False)
