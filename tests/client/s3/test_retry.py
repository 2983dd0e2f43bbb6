"""Tries are bounded, pauses are spread out, and credentials are renewed once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.s3.errors import Reason, S3Error
from client.s3.retry import RetryPolicy
from tests.support.s3_faults import PassedTime

if TYPE_CHECKING:
    from collections.abc import Callable


class Attempts:
    """Fails with ``errors`` in turn, then succeeds."""

    def __init__(self, *errors: S3Error) -> None:
        self.errors = list(errors)
        self.told: list[bool] = []
        self.renewals = 0

    def __call__(self, unsure: bool) -> str:
        self.told.append(unsure)
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    def renew(self) -> None:
        self.renewals += 1


def _error(reason: Reason, retry_after: float | None = None) -> S3Error:
    return S3Error("failed", reason, retry_after=retry_after)


@given(
    seconds=st.floats(0.1, 100),
    first=st.floats(0.001, 2),
    longest=st.floats(0.1, 20),
    asked=st.none() | st.floats(0, 10_000),
    draw=st.floats(0, 1),
)
def test_no_try_begins_after_the_deadline(
    seconds: float, first: float, longest: float, asked: float | None, draw: float
) -> None:
    time = PassedTime()
    policy = RetryPolicy(seconds, first, longest, clock=lambda: time.now, sleep=time.sleep, draw=lambda: draw)
    begin = time.now

    def attempt(unsure: bool) -> None:
        assert time.now < begin + seconds
        time.now += 0.01
        raise _error(Reason.BUSY, asked)

    with pytest.raises(S3Error):
        policy.run(attempt, renew=pytest.fail)
    assert max(time.slept, default=0) <= longest


def test_pauses_grow_up_to_a_bound() -> None:
    time = PassedTime()
    attempts = Attempts(*[_error(Reason.UNREACHABLE)] * 8)
    assert time.policy(seconds=100, first=0.2, longest=3.2).run(attempts, renew=pytest.fail) == "done"
    assert time.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6, 1.6])


def test_a_store_that_asks_for_a_minute_holds_nobody_for_a_minute() -> None:
    time = PassedTime()
    attempts = Attempts(_error(Reason.BUSY, 2.0), _error(Reason.BUSY, 60.0))
    assert time.policy().run(attempts, renew=pytest.fail) == "done"
    assert time.slept == [2.0, 5.0]


@pytest.mark.parametrize("reason", [reason for reason in Reason if not reason.is_passing])
def test_what_will_not_pass_is_not_tried_again(reason: Reason) -> None:
    time = PassedTime()
    attempts = Attempts(*[_error(reason)] * 9)
    with pytest.raises(S3Error):
        time.policy().run(attempts, renew=attempts.renew)
    expired = reason is Reason.EXPIRED
    assert (len(attempts.told), attempts.renewals, time.slept) == (1 + expired, int(expired), [])


def test_a_write_is_called_unsure_only_after_a_try_that_may_have_worked() -> None:
    attempts = Attempts(_error(Reason.EXPIRED), _error(Reason.UNREACHABLE), _error(Reason.BUSY))
    assert PassedTime().policy().run(attempts, renew=attempts.renew) == "done"
    assert attempts.told == [False, False, True, True]


def test_renewal_that_fails_is_told() -> None:
    def renew() -> None:
        raise _error(Reason.DENIED)

    policy: Callable[..., str] = PassedTime().policy().run
    with pytest.raises(S3Error) as caught:
        policy(Attempts(_error(Reason.EXPIRED)), renew=renew)
    assert caught.value.reason is Reason.DENIED
