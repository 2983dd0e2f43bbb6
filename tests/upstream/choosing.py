"""Which tests a share holds: chosen by the digests of their names and a number, so that the number says it all."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def share(names: Iterable[str], count: int, *, number: int) -> list[str]:
    """Return ``count`` of ``names``, or all if there are fewer; another number gives others."""
    return sorted(names, key=lambda name: (hashlib.sha256(f"{number}:{name}".encode()).digest(), name))[:count]


def spread(groups: Mapping[str, str], *, number: int) -> list[str]:
    """Return the names in ``groups``, first one of each group, then a second: one test is made for a hundred dtypes."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in share(groups, len(groups), number=number):
        alike[groups[name]].append(name)
    turns = max(map(len, alike.values()), default=0)
    order = share(alike, len(alike), number=number)
    return [alike[group][turn] for turn in range(turns) for group in order if turn < len(alike[group])]


def files(all_files: Sequence[str], count: int, *, number: int) -> list[str]:
    """Return ``count`` files; as many numbers in a row as it takes see every file."""
    order = share(all_files, len(all_files), number=0)
    start = number * count % len(order)
    return [order[(start + each) % len(order)] for each in range(min(count, len(order)))]
