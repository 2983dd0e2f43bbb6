"""What an entry is worth, and what decides whether it goes: pure rules, without database, store or clock.

**Value.** An entry is worth the compile seconds that it will save, for each byte that it takes::

    score = max(compile_seconds, 1) * uses / max(stored_bytes, 1)

``uses`` counts every use with a weight that halves every `HALF_LIFE` since; being published counts as a use. It stands
for how often the entry will be asked for: what was used often and lately is. (GreedyDual-Size-Frequency weighs cost,
frequency and size the same way; the half-life takes the place of its inflation.) Entries of unknown compile time count
one second, so that they are not all collected first.

**Heat.** The weighted count is kept as a plain sum, ``heat``, to which a use at time *t* adds ``2 ** ((t - LANDMARK) /
HALF_LIFE)``; divided by the same weight of *now* it is the decayed count (forward decay: Cormode, Shkapenyuk,
Srivastava and Xu, ICDE 2009). Sums may be added in any order, so any number of servers count into one row.

**Order** (`cache_server.collection_plan`). First goes what a rule of its project drops: unused for too long, or built
by a compiler version that is not kept. Then, in each project over its quota, and last on a server over its limit, the
lowest score goes first, until a tenth of the limit is free. Pinned entries, entries whose key is leased, and entries
that were published or used within the grace time are never collected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

HALF_LIFE = 14 * 86400.0
"""Seconds after which a use counts half. A constant: sums under different half-lives cannot be compared."""

LANDMARK = 1_767_225_600.0
"""The time (2026-01-01) at which a use weighs one. Doubles hold the weights of 39 years from then on."""

SLACK = 10
"""A collection frees one part in so many of a limit, so that a full project is not collected for every publish."""

_LARGEST_EXPONENT = 1000.0
_UNKNOWN_SECONDS = 1.0
_RELEASE = re.compile(r"\d+(?:\.\d+)+")

Named: TypeAlias = tuple[str, str, str]
"""Project, kind and key."""


def weight(time: float) -> float:
    """Return what a use at ``time`` (seconds since the epoch) adds to an entry's heat."""
    exponent = (time - LANDMARK) / HALF_LIFE
    return float(2.0 ** min(max(exponent, -_LARGEST_EXPONENT), _LARGEST_EXPONENT))


class Candidate(NamedTuple):
    """A ready entry as the rules see it. Times are seconds since the epoch, by the database's clock."""

    project: str
    kind: str
    key: str
    stored_bytes: int
    compile_seconds: float
    indexed: float
    label: str
    compiler: str
    version: str
    hits: int = 0
    heat: float = 0.0
    last_used: float = 0.0

    @property
    def named(self) -> Named:
        """Project, kind and key."""
        return self[:3]

    @property
    def touched(self) -> float:
        """When the entry was last used or, if never, published."""
        return max(self.indexed, self.last_used)


def score(candidate: Candidate, now: float) -> float:
    """Return compile seconds saved for each byte, weighted by recency; see the module's text."""
    # never more than the uses there were: a clock that ran ahead for a while must not make an entry immortal
    uses = min(candidate.heat / weight(now), candidate.hits) + min(weight(candidate.indexed) / weight(now), 1.0)
    return max(candidate.compile_seconds, _UNKNOWN_SECONDS) * uses / max(candidate.stored_bytes, 1)


class Limit(NamedTuple):
    """How much a project, or the server, may hold; None: any amount."""

    max_bytes: int | None = None
    max_entries: int | None = None


class Amount(NamedTuple):
    """Bytes as stored, and entries."""

    stored_bytes: int = 0
    entries: int = 0

    def plus(self, other: Amount) -> Amount:
        """Return the sum."""
        return Amount(self.stored_bytes + other.stored_bytes, self.entries + other.entries)

    def minus(self, other: Amount) -> Amount:
        """Return the difference, never below nothing."""
        return Amount(max(self.stored_bytes - other.stored_bytes, 0), max(self.entries - other.entries, 0))

    def covers(self, need: Amount) -> bool:
        """Return whether this is at least ``need`` in both."""
        return self.stored_bytes >= need.stored_bytes and self.entries >= need.entries

    def fits(self, limit: Limit) -> bool:
        """Return whether this much is within the limit."""
        return (limit.max_bytes is None or self.stored_bytes <= limit.max_bytes) and (
            limit.max_entries is None or self.entries <= limit.max_entries
        )


NOTHING = Amount()


def excess(held: Amount, limit: Limit, incoming: Amount = NOTHING) -> Amount:
    """Return what must go before ``incoming`` fits within the limit."""
    wanted = held.plus(incoming)
    return Amount(
        0 if limit.max_bytes is None else max(wanted.stored_bytes - limit.max_bytes, 0),
        0 if limit.max_entries is None else max(wanted.entries - limit.max_entries, 0),
    )


def to_free(held: Amount, limit: Limit, incoming: Amount = NOTHING) -> Amount:
    """Return what a collection removes: nothing within the limit, else enough to leave some `SLACK`."""
    over = excess(held, limit, incoming)
    if over == NOTHING:
        return NOTHING
    lower = Limit(
        limit.max_bytes - limit.max_bytes // SLACK if limit.max_bytes is not None and over.stored_bytes else None,
        limit.max_entries - limit.max_entries // SLACK if limit.max_entries is not None and over.entries else None,
    )
    below = excess(held, lower)
    return Amount(max(over.stored_bytes, below.stored_bytes), max(over.entries, below.entries))


@dataclass(frozen=True, slots=True)
class Rules:
    """What a project drops whatever room there is.

    ``unused_seconds``: not published or used for so long. ``keep_versions``: of each compiler, the newest so many
    releases in the project are kept. ``oldest``: by compiler name, the oldest release that is kept.
    """

    unused_seconds: float | None = None
    keep_versions: int | None = None
    oldest: Mapping[str, str] = field(default_factory=dict)


def release(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a compiler version, such as ``2.27.5334.0+f702b353`` or ``jaxlib-0.10.2``.

    None if it holds none: such a version is older than no other, and no rule drops it.
    """
    found = _RELEASE.search(version)
    return None if found is None else tuple(int(part) for part in found[0].split("."))


def dropped_versions(rules: Rules, held: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Return those (compiler, version) of ``held`` that the rules do not keep."""
    by_compiler: dict[str, dict[str, tuple[int, ...]]] = {}
    for compiler, version in held:
        numbers = release(version)
        if numbers is not None:
            by_compiler.setdefault(compiler, {})[version] = numbers
    dropped: set[tuple[str, str]] = set()
    for compiler, versions in by_compiler.items():
        newest = sorted(set(versions.values()), reverse=True)
        kept = set(newest if rules.keep_versions is None else newest[: rules.keep_versions])
        oldest = release(rules.oldest.get(compiler, ""))
        dropped.update(
            (compiler, version)
            for version, numbers in versions.items()
            if numbers not in kept or (oldest is not None and numbers < oldest)
        )
    return frozenset(dropped)


@dataclass(frozen=True, slots=True)
class PinSet:
    """What is pinned in one project."""

    keys: frozenset[tuple[str, str]] = frozenset()
    labels: frozenset[str] = frozenset()

    def holds(self, candidate: Candidate) -> bool:
        """Return whether the entry is pinned, by itself or by its label."""
        return (candidate.kind, candidate.key) in self.keys or candidate.label in self.labels


@dataclass(frozen=True)
class Policy:
    """Everything that decides beside the entries themselves."""

    server: Limit = field(default_factory=Limit)
    quotas: Mapping[str, Limit] = field(default_factory=dict)
    common_rules: Rules = field(default_factory=Rules)
    rules: Mapping[str, Rules] = field(default_factory=dict)
    pins: Mapping[str, PinSet] = field(default_factory=dict)
    leased: Collection[Named] = frozenset()
    grace_seconds: float = 600.0

    def rules_of(self, project: str) -> Rules:
        """Return the project's own rules, else the common ones."""
        return self.rules.get(project, self.common_rules)

    def is_spared(self, candidate: Candidate, now: float) -> bool:
        """Return whether the entry is never collected now: pinned, leased, or in use."""
        pins = self.pins.get(candidate.project)
        return (
            candidate.touched > now - self.grace_seconds
            or (pins is not None and pins.holds(candidate))
            or candidate.named in self.leased
        )
