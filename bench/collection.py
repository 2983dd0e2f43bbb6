"""What a full cache costs in compile seconds, by the rule that says which entry goes: ours, LRU, LFU, the largest.

A simulated cluster: models come, are run on many days, fade, and sometimes come back. Each has a few graphs that are
large and dear, and many eager operators that are small and cheap; operators are shared between models. A run asks for
all entries of its model; what is missing is compiled again, and those seconds are what is counted. Entries that were
never there before cost the same under every rule and are left out.

    python bench/collection.py [--seed N]
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cache_server.collection_rules import LANDMARK, SLACK, Candidate, score, weight

if TYPE_CHECKING:
    from collections.abc import Callable

DAY = 86_400.0
DAYS = 180
SHARES = (0.1, 0.2, 0.4)


@dataclass
class Item:
    """An entry, and how it has been used; times are seconds since the epoch."""

    key: str
    size: int
    seconds: float
    indexed: float = 0.0
    last_used: float = 0.0
    hits: int = 0
    heat: float = 0.0

    def used(self, now: float) -> None:
        self.last_used = now
        self.hits += 1
        self.heat += weight(now)

    def candidate(self) -> Candidate:
        return Candidate(
            "p",
            "graph",
            self.key,
            self.size,
            self.seconds,
            self.indexed,
            "",
            "",
            "",
            self.hits,
            self.heat,
            self.last_used,
        )


@dataclass
class Model:
    """A model: the day it came, and what a run of it asks for."""

    born: int
    needs: list[Item] = field(default_factory=list)

    def runs_on(self, day: int, chance: random.Random) -> bool:
        age = day - self.born
        return age >= 0 and chance.random() < max(0.9 * 0.5 ** (age / 10), 0.01)


RULES: dict[str, Callable[[Item, float], float]] = {
    "value (ours)": lambda item, now: score(item.candidate(), now),
    "least recently used": lambda item, _now: max(item.last_used, item.indexed),
    "least frequently used": lambda item, _now: item.hits,
    "largest": lambda item, _now: -item.size,
}


def cluster(chance: random.Random) -> list[Model]:
    operators = [Item(f"op{n}", int(10 ** chance.uniform(4, 5.3)), chance.uniform(0.5, 5)) for n in range(1500)]
    models = []
    for number in range(80):
        graphs = [
            Item(f"g{number}-{n}", int(10 ** chance.uniform(6.5, 8.7)), 10 ** chance.uniform(1.5, 3.6))
            for n in range(6)
        ]
        models.append(Model(chance.randrange(DAYS), graphs + chance.sample(operators, 150)))
    return models


def compiled_again(share: float, rule: Callable[[Item, float], float], seed: int) -> float:
    """Return the hours of compiling that a cache of ``share`` of everything costs under a rule."""
    chance = random.Random(seed)  # noqa: S311 - a simulation that can be repeated
    models = cluster(chance)
    everything = {item.key: item for model in models for item in model.needs}
    room = int(share * sum(item.size for item in everything.values()))
    held: dict[str, Item] = {}
    seen: set[str] = set()
    lost, size = 0.0, 0
    for day in range(DAYS):
        for model in models:
            if not model.runs_on(day, chance):
                continue
            now = LANDMARK + day * DAY + chance.random() * DAY
            for item in model.needs:
                if item.key in held:
                    item.used(now)
                    continue
                lost += item.seconds if item.key in seen else 0.0
                seen.add(item.key)
                item.indexed, item.hits, item.heat, item.last_used = now, 0, 0.0, 0.0
                held[item.key] = item
                size += item.size
            if size > room:
                for item in sorted(held.values(), key=lambda item: rule(item, now)):
                    if size <= room - room // SLACK:
                        break
                    del held[item.key]
                    size -= item.size
    return lost / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5, help="how many clusters to take the mean of")
    chosen = parser.parse_args()
    seeds = range(chosen.seed, chosen.seed + chosen.seeds)
    print("hours compiled again | " + " | ".join(f"room for {share:.0%}" for share in SHARES))
    for name, rule in RULES.items():
        hours = [sum(compiled_again(share, rule, seed) for seed in seeds) / len(seeds) for share in SHARES]
        print(f"{name} | " + " | ".join(f"{value:.1f}" for value in hours))


if __name__ == "__main__":
    main()
