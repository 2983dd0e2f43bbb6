"""Which input lengths to compile for: from how often each length is asked for, the buckets that waste least padding.

A Neuron program has fixed shapes. An input of another length is padded to the next larger bucket; each bucket is a
graph to compile, and each padded position is computed in vain.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from client.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_LENGTH = 1 << 40
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of ``buckets``, ascending: ``padded`` positions are computed for ``real`` ones that were asked for."""

    buckets: tuple[int, ...]
    real: int
    padded: int

    @property
    def waste(self) -> float:
        """The part of what is computed that is padding, from 0 to 1."""
        return 1 - self.real / self.padded if self.padded else 0.0


def choices(histogram: Mapping[int, int], multiple_of: int = 1) -> Iterator[Choice]:
    """Yield, for one bucket, two and so on, the choice that wastes least; ends when more buckets gain nothing.

    ``histogram`` has the count of each length; ``multiple_of`` is what every bucket has to be a multiple of. Exact: the
    cheapest way to cover the first lengths with k buckets is the cheapest with k - 1 up to some length, and one bucket
    for the rest. The cost of one bucket obeys the quadrangle inequality, so that the best such length never falls as
    more is covered, and each step takes n log n.
    """
    if multiple_of < 1:
        raise ValueError(f"buckets cannot be multiples of {multiple_of}: expected 1 or more")
    lengths = sorted(length for length, count in histogram.items() if count)
    counts = [0, *accumulate(histogram[length] for length in lengths)]
    real = sum(length * histogram[length] for length in lengths)
    tops = [-(-length // multiple_of) * multiple_of for length in lengths]
    n = len(lengths)

    def cost(begin: int, end: int) -> int:
        """Return the positions computed for lengths ``begin`` to ``end`` (not included) in one bucket."""
        return tops[end - 1] * (counts[end] - counts[begin])

    best = [0, *(cost(0, end) for end in range(1, n + 1))]
    origins: list[list[int]] = []
    while n:
        found = Choice(_buckets(origins, tops, n), real, best[n])
        yield found
        step = _one_more(best, len(origins) + 1, n, cost)
        if step[0][n] >= best[n]:
            return
        best = step[0]
        origins.append(step[1])


def _one_more(best: Sequence[int], used: int, n: int, cost: Any) -> tuple[list[int], list[int]]:
    """Return the cheapest cover of each beginning with one bucket more than ``best`` has, and where that bucket begins.

    ``used`` is how many ``best`` has: a beginning of fewer lengths needs no more than that and stays as it is.
    """
    costs, origin = list(best), list(range(n + 1))
    waiting = [(used + 1, n, used, n - 1)]
    while waiting:
        low, high, first, last = waiting.pop()
        if low > high:
            continue
        middle = (low + high) // 2
        candidates = range(first, min(last, middle - 1) + 1)
        begin = min(candidates, key=lambda start: best[start] + cost(start, middle))
        costs[middle], origin[middle] = best[begin] + cost(begin, middle), begin
        waiting += [(low, middle - 1, first, begin), (middle + 1, high, begin, last)]
    return costs, origin


def _buckets(origins: Sequence[Sequence[int]], tops: Sequence[int], end: int) -> tuple[int, ...]:
    """Follow the last buckets back to the first; lengths that round to one multiple share a bucket."""
    found = []
    for origin in reversed(origins):
        found.append(tops[end - 1])
        end = origin[end]
    return tuple(sorted({*found, tops[end - 1]}))


def read_histogram(text: str, where: str) -> dict[int, int]:
    """Return how often each length occurs, from ``length,count`` or JSON lines; a length alone counts once.

    JSON is ``{"length": 17, "count": 3}`` or ``[17, 3]`` a line. A first line of names is passed over. Raises
    `FormatError` with the line's number, and if there is nothing in it.
    """
    found: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or (number == 1 and stripped[0].isalpha()):
            continue
        try:
            length, count = _line(stripped)
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"line {number} of {where} is no length with its count: expected `length,count` or "
                f'{{"length": 17, "count": 3}}, found {stripped[:80]!r}'
            ) from error
        found[length] = found.get(length, 0) + count
    if not any(found.values()):
        raise FormatError(f"{where} counts no request: expected lines of `length,count`")
    return found


def _line(text: str) -> tuple[int, int]:
    value: Any = json.loads(text) if text[0] in "{[" else next(csv.reader([text]))
    if isinstance(value, dict):
        value = [value["length"], value.get("count", 1)]
    length, count = (*value, 1)[:2] if len(value) == 1 else value
    length, count = _whole(length), _whole(count)
    if not 0 < length <= MAX_LENGTH or count < 0:
        raise ValueError(text)
    return length, count


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError(value)
    return int(value)


def parse_shapes(text: str, where: str) -> list[Shape]:
    """Return buckets as shapes: from ``64,128``, ``8x64,8x128``, lines of these, or JSON.

    JSON is a list of numbers or lists, or an object that has one as ``buckets``, as ``plan shapes`` writes. Raises
    `FormatError`.
    """
    stripped = text.strip()
    try:
        if stripped.startswith(("{", "[")):
            value: Any = json.loads(stripped)
            items = value["buckets"] if isinstance(value, dict) else value
            shapes = [tuple(map(_whole, item if isinstance(item, list) else [item])) for item in items]
        else:
            words = stripped.replace("\n", ",").split(",")
            shapes = [tuple(int(part) for part in word.strip().split("x")) for word in words if word.strip()]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{where} holds no shapes: expected 64,128 or 8x64,8x128, or a file of `plan shapes`"
        ) from error
    if not shapes or any(size < 0 for shape in shapes for size in shape) or not all(shapes):
        raise FormatError(f"{where} holds no shapes: expected one or more such as 64 or 8x64, none of them negative")
    return list(dict.fromkeys(shapes))
