"""Which entries a collection removes, and in which order, by the rules of `cache_server.collection_rules`."""

from __future__ import annotations

from bisect import insort
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from cache_server.collection_rules import NOTHING, Amount, Candidate, dropped_versions, score, to_free

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from cache_server.collection_rules import Policy, Rules


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
