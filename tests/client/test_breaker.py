from __future__ import annotations

from client.breaker import FIRST_PAUSE, LONGEST_PAUSE, Breaker


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def test_one_failure_does_not_cut_a_job_off():
    breaker = Breaker(Clock())
    breaker.failed()
    breaker.succeeded()
    breaker.failed()
    assert breaker.allows()


def test_two_failures_in_a_row_stop_requests_until_the_background_has_asked():
    clock = Clock()
    breaker = Breaker(clock)
    breaker.failed()
    breaker.failed()
    assert not breaker.allows()
    assert not breaker.due()
    clock.time += FIRST_PAUSE
    assert not breaker.allows()
    assert breaker.due()
    assert not breaker.due(), "one request asks, not all"
    breaker.succeeded()
    assert breaker.allows()
    breaker.failed()
    assert not breaker.allows(), "a server that comes and goes has one try, not two"


def test_pauses_double_up_to_their_bound():
    clock = Clock()
    breaker = Breaker(clock)
    breaker.failed()
    breaker.failed()
    pauses = []
    for _ in range(7):
        start = clock.time
        while not breaker.due():
            clock.time += 1
        pauses.append(clock.time - start)
        breaker.failed()
    assert pauses == [30, 60, 120, 240, 480, LONGEST_PAUSE, LONGEST_PAUSE]


def test_failures_of_requests_that_were_under_way_do_not_lengthen_the_pause():
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(10):
        breaker.failed()
    clock.time += FIRST_PAUSE
    assert breaker.due()


def test_a_server_that_came_back_for_good_starts_afresh():
    clock = Clock()
    breaker = Breaker(clock)
    breaker.trip()
    clock.time += FIRST_PAUSE
    assert breaker.due()
    breaker.succeeded()
    breaker.succeeded()
    breaker.failed()
    assert breaker.allows()
    breaker.failed()
    clock.time += FIRST_PAUSE
    assert breaker.due()


def test_a_denied_direction_is_never_asked_again():
    clock = Clock()
    breaker = Breaker(clock)
    breaker.stop()
    clock.time += 10 * LONGEST_PAUSE
    assert not breaker.allows()
    assert not breaker.due()
