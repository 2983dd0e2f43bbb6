"""What is collected, and in which order: pure rules, without database, store or clock.

**Value.** An entry is worth the compile seconds that it will save, for each byte that it takes::

    score = max(compile_seconds, 1) * uses / max(stored_bytes, 1)

``uses`` counts every use with a weight that halves every `HALF_LIFE` since; being published counts as a use. It stands
for how often the entry will be asked for: what was used often and lately is. (GreedyDual-Size-Frequency weighs cost,
frequency and size the same way; the half-life takes the place of its inflation.) Entries of unknown compile time count
one second, so that they are not all collected first.

**Heat.** The weighted count is kept as a plain sum, ``heat``, to which a use at time *t* adds ``2 ** ((t - LANDMARK) /
HALF_LIFE)``; divided by the same weight of *now* it is the decayed count (forward decay: Cormode, Shkapenyuk,
Srivastava and Xu, ICDE 2009). Sums may be added in any order, so any number of servers count into one row.

**Order.** First goes what a rule of its project drops: unused for too long, or built by a compiler version that is not
kept. Then, in each project over its quota, and last on a server over its limit, the lowest score goes first, until a
tenth of the limit is free. Pinned entries, entries whose key is leased, and entries that were published or used within
the grace time are never collected.
"""

from __future__ import annotations

import re
from bisect import insort
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

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


class Reason(StrEnum):
    """Why an entry is collected."""

    UNUSED = "unused"
    COMPILER = "compiler"
    QUOTA = "quota"
    LIMIT = "limit"


class Victim(NamedTuple):
    """An entry to be collected, why, and what it was worth."""

    candidate: Candidate
    reason: Reason
    score: float


class Held(NamedTuple):
    """Ready entries of one project and compiler version."""

    project: str
    compiler: str
    version: str
    amount: Amount


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


class _Cheapest:
    """The lowest scored entries that together free ``need``, all of them if they do not. Holds no more than those."""

    def __init__(self, need: Amount) -> None:
        self._need = need
        self._freed = NOTHING
        self._kept: list[tuple[float, Candidate]] = []

    def offer(self, worth: float, candidate: Candidate) -> None:
        item = (worth, candidate)
        if self._freed.covers(self._need) and (not self._kept or item > self._kept[-1]):
            return
        insort(self._kept, item)
        self._freed = self._freed.plus(_amount(candidate))
        self._trim()

    def lower(self, by: Amount) -> None:
        """Need less: something else went."""
        self._need = self._need.minus(by)
        self._trim()

    def _trim(self) -> None:
        while self._kept:
            without = self._freed.minus(_amount(self._kept[-1][1]))
            if not without.covers(self._need):
                return
            self._kept.pop()
            self._freed = without

    def victims(self, reason: Reason) -> list[Victim]:
        return [Victim(candidate, reason, worth) for worth, candidate in self._kept]


def _amount(candidate: Candidate) -> Amount:
    return Amount(candidate.stored_bytes, 1)


def plan(
    rows: Callable[[], Iterable[Candidate]],
    held: Collection[Held],
    policy: Policy,
    now: float,
    incoming: Mapping[str, Amount] | None = None,
) -> list[Victim]:
    """Return what to collect, in order of removal.

    ``rows`` gives all ready entries that may be chosen, and may be called twice; ``held`` is what there is of them;
    ``incoming`` is what is about to be added, by project. Memory is bounded by what is chosen.
    """
    incoming = incoming or {}
    totals: dict[str, Amount] = {}
    versions: dict[str, set[tuple[str, str]]] = {}
    for line in held:
        totals[line.project] = totals.get(line.project, NOTHING).plus(line.amount)
        versions.setdefault(line.project, set()).add((line.compiler, line.version))
    dropped = {project: dropped_versions(policy.rules_of(project), found) for project, found in versions.items()}
    cheapest = {
        project: _Cheapest(to_free(amount, policy.quotas[project], incoming.get(project, NOTHING)))
        for project, amount in totals.items()
        if project in policy.quotas
    }

    ruled: list[Victim] = []
    for candidate in rows():
        if policy.is_spared(candidate, now):
            continue
        project = candidate.project
        reason = _dropped_by(policy.rules_of(project), dropped.get(project, frozenset()), candidate, now)
        if reason is not None:
            ruled.append(Victim(candidate, reason, score(candidate, now)))
            if project in cheapest:
                cheapest[project].lower(_amount(candidate))
        elif project in cheapest:
            cheapest[project].offer(score(candidate, now), candidate)
    chosen = [*ruled, *(victim for one in cheapest.values() for victim in one.victims(Reason.QUOTA))]
    return chosen + _over_server_limit(rows, chosen, totals, policy, now)


def _dropped_by(rules: Rules, dropped: frozenset[tuple[str, str]], candidate: Candidate, now: float) -> Reason | None:
    if rules.unused_seconds is not None and candidate.touched <= now - rules.unused_seconds:
        return Reason.UNUSED
    return Reason.COMPILER if (candidate.compiler, candidate.version) in dropped else None


def _over_server_limit(
    rows: Callable[[], Iterable[Candidate]],
    chosen: list[Victim],
    totals: Mapping[str, Amount],
    policy: Policy,
    now: float,
) -> list[Victim]:
    held = NOTHING
    for amount in totals.values():
        held = held.plus(amount)
    for victim in chosen:
        held = held.minus(_amount(victim.candidate))
    need = to_free(held, policy.server)
    if need == NOTHING:
        return []
    gone = {victim.candidate.named for victim in chosen}
    cheapest = _Cheapest(need)
    for candidate in rows():
        if candidate.named not in gone and not policy.is_spared(candidate, now):
            cheapest.offer(score(candidate, now), candidate)
    return cheapest.victims(Reason.LIMIT)
