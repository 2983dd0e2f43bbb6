"""The chosen buckets are the best there are."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from client.buckets import choices

HISTOGRAMS = st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=9)


def padded(histogram: dict[int, int], buckets: tuple[int, ...]) -> int:
    return sum(min(bucket for bucket in buckets if bucket >= length) * count for length, count in histogram.items())


@settings(max_examples=300, deadline=None)
@given(HISTOGRAMS, st.sampled_from([1, 4, 16]))
def test_no_other_buckets_waste_less_padding(histogram, multiple):
    tops = sorted({-(-length // multiple) * multiple for length in histogram})
    found = list(choices(histogram, multiple))
    assert [len(choice.buckets) for choice in found] == list(range(1, len(tops) + 1))
    for count, choice in enumerate(found, 1):
        assert choice.padded == padded(histogram, choice.buckets)
        covers = [(*some, tops[-1]) for some in combinations(tops[:-1], count - 1)]
        assert choice.padded == min(padded(histogram, cover) for cover in covers)
        assert choice.real == sum(length * times for length, times in histogram.items())
        assert all(bucket % multiple == 0 for bucket in choice.buckets)
