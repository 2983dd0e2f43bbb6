from __future__ import annotations

import pytest

from client.errors import Denied, Unreachable
from client.foreign.watching import MOST_SECONDS, Ending, watch


class _Event:
    """Stands for ``ended``: notes what was waited for, and is set after ``most`` waits."""

    def __init__(self, most: int) -> None:
        self.waited: list[float] = []
        self._most = most

    def is_set(self) -> bool:
        return len(self.waited) >= self._most

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return self.is_set()


def _watched(failures: set[int], *, passes: int, error: Exception) -> tuple[list[bool], list[float], list[str]]:
    ending = Ending()
    event = _Event(passes - 1)
    ending.ended = event  # type: ignore[assignment] # a clock that does not run
    done: list[bool] = []
    said: list[str] = []

    def once(last: bool) -> None:
        done.append(last)
        if len(done) in failures:
            raise error

    watch(once, ending, said.append, interval=10, uniform=lambda low, high: (low + high) / 2)
    return done, event.waited, said


def test_the_last_pass_comes_after_the_end_was_told() -> None:
    done, waited, said = _watched(set(), passes=3, error=Unreachable("gone"))
    assert (done, waited, said) == ([False, False, True], [10, 10], [])


def test_an_outage_is_told_once_waited_for_longer_and_longer_and_its_end_told() -> None:
    done, waited, said = _watched(set(range(2, 10)), passes=12, error=Unreachable("gone"))
    assert len(done) == 12
    assert waited[:5] == [10, 20, 40, 80, 160]
    assert max(waited) == MOST_SECONDS
    assert waited[-2:] == [10, 10]
    assert [text.partition(";")[0] for text in said] == ["gone", "it works again"]


def test_a_missing_right_ends_it_because_waiting_does_not_give_it() -> None:
    with pytest.raises(Denied):
        _watched({1}, passes=3, error=Denied("no"))


def test_a_second_signal_cuts_the_last_pass_short() -> None:
    ending = Ending()
    ending.tell()
    assert (ending.ended.is_set(), ending.now.is_set()) == (True, False)
    ending.tell()
    assert ending.now.is_set()
    ending.close()
