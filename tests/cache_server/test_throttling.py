"""One caller cannot crowd out the others, and is told when to come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cache_server.access import ADMIN, Principal
from cache_server.errors import Problem
from cache_server.throttling import Throttle
from tests.cache_server.harness import TOKEN, build, problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import InProcess

PATH = "/v1/default/lookup"
LOOKUP = {"keys": []}


class Bucket:
    """A throttle and its clock."""

    def __init__(self, rate: float | None, burst_seconds: float) -> None:
        self.now = 1000.0
        self.throttle = Throttle(rate, burst_seconds, monotonic=lambda: self.now)

    def sends(self, count: int, principal: Principal = ADMIN, path: str = PATH) -> int:
        """Return how many of ``count`` requests are let through."""
        passed = 0
        for _ in range(count):
            try:
                self.throttle.check(principal, path)
            except Problem:
                continue
            passed += 1
        return passed


def test_a_caller_gets_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(10, 2)
    assert bucket.sends(50) == 20
    bucket.now += 1
    assert bucket.sends(50) == 10
    bucket.now += 3600
    assert bucket.sends(50) == 20


def test_a_refused_request_costs_nothing_of_what_comes_later() -> None:
    bucket = Bucket(1, 1)
    assert bucket.sends(100) == 1
    bucket.now += 1
    assert bucket.sends(100) == 1


def test_callers_do_not_share_a_bucket_and_one_may_have_a_rate_of_its_own() -> None:
    bucket = Bucket(1, 1)
    assert bucket.sends(5, Principal("a", (), "id-1")) == 1
    assert bucket.sends(5, Principal("a", (), "id-2")) == 1
    assert bucket.sends(5, Principal("issuer:a", ())) == 1
    assert bucket.sends(5, Principal("fast", (), "id-3", rate=3.0)) == 3


def test_without_a_limit_nobody_is_held_up_but_whoever_has_one() -> None:
    bucket = Bucket(None, 1)
    assert bucket.sends(1000) == 1000
    assert bucket.sends(5, Principal("slow", (), "id", rate=2.0)) == 2


def test_even_the_smallest_burst_lets_one_through() -> None:
    bucket = Bucket(0.01, 0)
    assert bucket.sends(3) == 1
    bucket.now += 99
    assert bucket.sends(3) == 0
    bucket.now += 1.01
    assert bucket.sends(3) == 1


def test_the_time_to_come_back_is_enough() -> None:
    bucket = Bucket(0.5, 1)
    assert bucket.sends(1) == 1
    with pytest.raises(Problem) as refused:
        bucket.throttle.check(ADMIN, PATH)
    assert refused.value.kind.name == "throttled"
    bucket.now += int(refused.value.headers["Retry-After"])
    assert bucket.sends(1) == 1


@pytest.mark.parametrize("path", ["/metrics", build().lease, f"{build().lease}/release"])
def test_heartbeats_waiting_and_scrapes_are_never_refused(path: str) -> None:
    bucket = Bucket(1, 1)
    assert bucket.sends(5) == 1
    assert bucket.sends(50, path=path) == 50


def test_many_callers_do_not_fill_the_memory() -> None:
    bucket = Bucket(1, 1)
    for number in range(20_000):
        bucket.throttle.check(Principal(f"{number}", ()), PATH)
    assert len(bucket.throttle._paid) <= 10_000


def test_a_throttled_caller_is_told_so_and_others_go_on(make_server: Callable[..., InProcess]) -> None:
    server = make_server(rate_limit=0.001, rate_burst_seconds=2000)
    created = server.call("POST", "/admin/v1/tokens", json={"label": "slow", "grants": [{"scopes": ["read"]}]})
    token = created.json()["token"]
    for _ in range(2):
        assert server.call("POST", PATH, json=LOOKUP, token=token).status_code == 200
    answer = server.call("POST", PATH, json=LOOKUP, token=token)
    assert problem(answer) == (429, "throttled")
    assert 0 < int(answer.headers["retry-after"]) <= 1001
    # whether there is such a project is not told to whoever is throttled either
    assert problem(server.call("POST", "/v1/other/lookup", json=LOOKUP, token=token)) == (429, "throttled")
    asked = {"holder": {"host": "h", "pid": 1}}
    assert server.call("POST", build().lease, json=asked, token=token).status_code == 200
    assert server.call("POST", PATH, json=LOOKUP, token=TOKEN).status_code == 200
    for path in ("/healthz", "/readyz"):
        assert server.call("GET", path, token=None).status_code == 200
