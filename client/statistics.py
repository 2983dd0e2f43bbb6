"""What the cache did for a job, counted: the fields of ``NEURON_CACHE_SUMMARY``.

=================  ====================================================================================================
``lookups``        programs asked for; each ends as one hit or one miss
``hits``           by tier: ``memory`` (this object's own), ``disk`` (this node's), ``remote`` (the shared cache)
``misses``         lookups that no tier could answer, however they ended
``compiles``       runs of the compiler in this process, the failed ones included
``waits``          lookups that waited for another process or thread to compile
``errors``         faults that the cache met and the job did not notice
``compile_seconds``  seconds in those runs
``saved_seconds``  compile seconds of the entries found on disk or in the shared cache, once for each key and process
``bytes_down``     plain bytes of the programs fetched; ``bytes_up`` of the outputs published
``shadow``         only where hits are checked (``NEURON_BACKEND_SHADOW``): how many, by how they compared
=================  ====================================================================================================
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from client.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.artifact import Source
    from client.names import Kind

SCHEMA = 1
Json = dict[str, Any]
Field: TypeAlias = Literal[
    "lookups",
    "memory_hits",
    "disk_hits",
    "remote_hits",
    "misses",
    "compiles",
    "waits",
    "errors",
    "compile_seconds",
    "saved_seconds",
    "bytes_down",
    "bytes_up",
]
HITS: Mapping[Source, Field] = {"memory": "memory_hits", "disk": "disk_hits", "remote": "remote_hits"}


@dataclass(slots=True)
class Counts:
    """The counts of one kind, or of all. Times in seconds, sizes in bytes."""

    lookups: int = 0
    memory_hits: int = 0
    disk_hits: int = 0
    remote_hits: int = 0
    misses: int = 0
    compiles: int = 0
    waits: int = 0
    errors: int = 0
    compile_seconds: float = 0.0
    saved_seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def hits(self) -> dict[str, int]:
        """Hits by tier."""
        return {tier: cast("int", getattr(self, name)) for tier, name in HITS.items()}

    def add(self, other: Counts) -> None:
        """Add another's counts to these."""
        for member in fields(Counts):
            setattr(self, member.name, getattr(self, member.name) + getattr(other, member.name))

    def counts_to_json(self) -> Json:
        """Return the counts as they stand in a summary."""
        value: Json = {}
        for member in fields(Counts):
            if member.name == "memory_hits":
                value["hits"] = self.hits
            elif member.name not in HITS.values():
                found = getattr(self, member.name)
                value[member.name] = round(found, 6) if isinstance(found, float) else found
        return value

    @classmethod
    def counts_from_json(cls, value: Any) -> Counts:
        """Read counts out of a summary; raises `WireError`."""
        try:
            flat = {**value, **{HITS[tier]: value["hits"][tier] for tier in HITS}}
            read = cls()
            for member in fields(Counts):
                number = float if member.type == "float" else int
                setattr(read, member.name, number(flat[member.name]))
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"no counts of a summary: {error!r}") from error
        return read


@dataclass(slots=True)
class Statistics(Counts):
    """A snapshot: counts over all kinds, the processes they come from, each key used at least once, counts by kind."""

    pids: tuple[int, ...] = ()
    keys: frozenset[str] = frozenset()
    by_kind: dict[str, Counts] = field(default_factory=dict)
    shadow: dict[str, int] = field(default_factory=dict)

    def plus(self, other: Statistics) -> Statistics:
        """Return the sum of two snapshots."""
        total = Statistics(
            pids=tuple(dict.fromkeys((*self.pids, *other.pids))),
            keys=self.keys | other.keys,
            by_kind={kind: Counts() for kind in {**self.by_kind, **other.by_kind}},
            shadow=dict(Counter(self.shadow) + Counter(other.shadow)),
        )
        for part in (self, other):
            total.add(part)
            for kind, counts in part.by_kind.items():
                total.by_kind[kind].add(counts)
        return total

    def to_json(self) -> Json:
        """Return the snapshot as a summary, schema 1."""
        return {
            "schema": SCHEMA,
            "pids": list(self.pids),
            **self.counts_to_json(),
            "keys": sorted(self.keys),
            "by_kind": {kind: self.by_kind[kind].counts_to_json() for kind in sorted(self.by_kind)},
            **({"shadow": self.shadow} if self.shadow else {}),
        }

    @classmethod
    def from_json(cls, value: Any) -> Statistics:
        """Read a summary; raises `WireError` for what is none of schema 1."""
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise WireError(f"no summary of schema {SCHEMA}")
        read = cls()
        read.add(Counts.counts_from_json(value))
        try:
            read.pids = tuple(int(pid) for pid in value["pids"])
            read.keys = frozenset(str(key) for key in value["keys"])
            read.by_kind = {str(kind): Counts.counts_from_json(part) for kind, part in value["by_kind"].items()}
            read.shadow = {str(name): int(count) for name, count in value.get("shadow", {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"no summary: {error!r}") from error
        return read


class Tally:
    """The running counts of one cache object. Safe to use from several threads."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._by_kind: dict[str, Counts] = {}
        self._keys: set[tuple[str, str]] = set()
        self._shadow: Counter[str] = Counter()

    def add(self, kind: Kind, name: Field, amount: float = 1) -> None:
        """Add to one count."""
        with self._lock:
            counts = self._by_kind.setdefault(str(kind), Counts())
            setattr(counts, name, getattr(counts, name) + amount)

    def add_shadow(self, name: str) -> None:
        """Count one hit that was checked, or one step of that."""
        with self._lock:
            self._shadow[name] += 1

    def first_use(self, kind: Kind, key: str) -> bool:
        """Note that a key is used, and return whether this is the first time."""
        with self._lock:
            before = len(self._keys)
            self._keys.add((str(kind), key))
            return len(self._keys) > before

    def snapshot(self) -> Statistics:
        """Return the counts so far."""
        with self._lock:
            keys = frozenset(key for _, key in self._keys)
            total = Statistics(pids=(self._pid,), keys=keys, shadow=dict(self._shadow))
            for kind, counts in self._by_kind.items():
                part = Counts()
                part.add(counts)
                total.by_kind[kind] = part
                total.add(part)
            return total
