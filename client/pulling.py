"""Filling a node tier before a job needs it, and telling whether a plan's entries are there."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from client.errors import ConfigurationError, Refused, Unreachable
from client.names import MAIN_OUTPUT
from client.node.tier import DamagedEntryError
from client.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from client.names import Kind
    from client.node.eviction import Evictor
    from client.node.tier import NodeTier
    from client.plans import Wanted
    from client.sources import Source
    from client.wire import Entry

T = TypeVar("T")
_In = TypeVar("_In")
_Out = TypeVar("_Out")

JOBS = 4
GROUP_BYTES = 16 << 20
"""Bytes that are asked for in one request: what breaks off and is asked for again costs no more."""
GROUP_ENTRIES = 256
BUDGET = 1 << 30
"""Bytes of programs that are held in memory at once; one that is larger is pulled alone."""
_LOOK = 64
_TRIES = 3
_PAUSE = 0.5
_THROTTLED = 429


class NodeFullError(ConfigurationError):
    """The node tier has no room for what was asked; the message says what to change."""


@dataclass
class Pulled:
    """What a pull did. ``gone`` were found and could not be read whole: the shared cache has set them aside.

    Nobody who is trusted vouches for those that were ``refused``.
    """

    present: int = 0
    pulled: int = 0
    bytes: int = 0
    missing: list[Wanted] = field(default_factory=list)
    gone: list[Wanted] = field(default_factory=list)
    refused: list[Wanted] = field(default_factory=list)

    def add(self, other: Pulled) -> None:
        """Add what another pull did."""
        self.present += other.present
        self.pulled += other.pulled
        self.bytes += other.bytes
        self.missing += other.missing
        self.gone += other.gone
        self.refused += other.refused

    @property
    def complete(self) -> bool:
        """Whether the node tier holds the whole plan now."""
        return not self.missing and not self.gone and not self.refused


class Progress:
    """What is told of a long run, from several threads; this one says nothing."""

    def total(self, entries: int, size: int) -> None:
        """Say how much there is to do: entries, and bytes."""

    def done(self, entries: int, size: int) -> None:
        """Say that so much more is done."""


SILENT = Progress()


class Puller:
    """Pulls one project's entries from ``source`` into ``tier``. One use at a time.

    ``evictor`` counts what is stored; ``max_bytes`` is its bound. ``jobs`` requests are on their way at once.
    """

    def __init__(
        self,
        source: Source,
        tier: NodeTier,
        evictor: Evictor,
        *,
        max_bytes: int,
        jobs: int = JOBS,
        progress: Progress = SILENT,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._tier = tier
        self._evictor = evictor
        self._max_bytes = max_bytes
        self._jobs = jobs
        self._progress = progress
        self._sleep = sleep
        self._budget = _Budget(BUDGET)
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def pull(self, wanted: Sequence[Wanted]) -> Pulled:
        """Bring the entries of ``wanted`` here. What is here, verified, is left; interrupted, it may be run again.

        Raises `client.errors.TransportError` if the shared cache cannot be asked, `NodeFullError` before anything is
        pulled that has no room, `OSError` and `client.node.permissions.UntrustedError` of the node tier.
        """
        self._stop.clear()
        self._tier.tree.claim()
        absent = [each for group in self._run(self._absent, _chunks(wanted, _LOOK)) for each in group]
        result = Pulled(present=len(wanted) - len(absent))
        found = [entry for group in self._run(self._find, _chunks(absent, self._source.batch)) for entry in group]
        programs = [entry for entry in found if entry.output() is not None]
        names = {(entry.kind, entry.key): entry for entry in found}
        result.missing = [each for each in absent if each.name not in names]
        size = sum(_size(entry) for entry in programs)
        check_room(self._tier, size, self._max_bytes)
        self._progress.total(len(programs), size)
        done: set[tuple[Kind, str]] = set()
        by_name = {each.name: each for each in absent}
        refused = [entry for entry in programs if not self._admits(entry)]
        result.refused = [by_name[entry.kind, entry.key] for entry in refused]
        programs = [entry for entry in programs if entry not in refused]
        self._run(lambda group: self._take(group, done, result), _groups(programs))
        result.gone = [by_name[entry.kind, entry.key] for entry in programs if (entry.kind, entry.key) not in done]
        return result

    def _admits(self, entry: Entry) -> bool:
        check = self._tier.check
        return check is None or check.admits(entry, self._source.address)

    def _absent(self, wanted: list[Wanted]) -> list[Wanted]:
        return [each for each in wanted if not is_here(self._tier, each)]

    def _find(self, wanted: list[Wanted]) -> list[Entry]:
        return self._again(lambda: self._source.find(wanted))

    def _take(self, group: list[Entry], done: set[tuple[Kind, str]], result: Pulled) -> None:
        """Fetch a group and store each of its entries as it comes; what breaks off is asked for again."""
        seen: set[tuple[Kind, str]] = set()

        def attempt() -> None:
            if self._stop.is_set():
                return
            left = [entry for entry in group if (entry.kind, entry.key) not in seen]
            with closing(self._source.fetch(left, {MAIN_OUTPUT})) as stream:
                for entry, outputs in stream:
                    if self._stop.is_set():
                        return
                    name = (entry.kind, entry.key)
                    seen.add(name)
                    neff = None if outputs is None else outputs.get(MAIN_OUTPUT)
                    if neff is None or not self._admits(entry):  # what comes may not be what was found
                        continue
                    if self._tier.put(entry, neff):
                        self._evictor.written(len(neff))
                    with self._lock:
                        done.add(name)
                        result.pulled += 1
                        result.bytes += len(neff)
                    self._progress.done(1, len(neff))

        with self._budget.held(sum(_size(entry) for entry in group)):
            self._again(attempt)

    def _again(self, call: Callable[[], T]) -> T:
        for number in range(1, _TRIES):
            try:
                return call()
            except Refused as error:
                if error.status != _THROTTLED:
                    raise
            except Unreachable:
                if self._stop.is_set():
                    raise
            self._sleep(_PAUSE * 2**number)
        return call()

    def _run(self, work: Callable[[list[_In]], _Out], groups: Iterable[list[_In]]) -> list[_Out]:
        return in_parallel(work, groups, jobs=self._jobs, stop=self._stop)


def check_room(tier: NodeTier, size: int, max_bytes: int) -> None:
    """Raise `NodeFullError` unless ``size`` more bytes fit into the tier's bound and onto its disk."""
    if size > max_bytes:
        raise NodeFullError(
            f"{size_text(size)} are to be stored, and the node tier may hold {size_text(max_bytes)}: "
            "set NEURON_CACHE_NODE_MAX_BYTES higher"
        )
    space = os.statvfs(tier.tree.root)
    free = space.f_bavail * space.f_frsize
    if size > free:
        raise NodeFullError(
            f"{size_text(size)} are to be stored, and the disk of {tier.tree.root} has {size_text(free)} left: "
            "free some, or set NEURON_CACHE_NODE_DIR to another disk"
        )


def missing(source: Source, wanted: Sequence[Wanted], *, jobs: int = JOBS, progress: Progress = SILENT) -> list[Wanted]:
    """Return those of ``wanted`` that the shared cache does not have whole; raises `client.errors.TransportError`."""
    progress.total(len(wanted), 0)

    def find(group: list[Wanted]) -> set[tuple[Kind, str]]:
        found = {(entry.kind, entry.key) for entry in source.find(group)}
        progress.done(len(group), 0)
        return found

    groups = in_parallel(find, _chunks(wanted, source.batch), jobs=jobs)
    found = {name for group in groups for name in group}
    return [each for each in wanted if each.name not in found]


def is_here(tier: NodeTier, wanted: Wanted) -> bool:
    """Return whether the node tier holds the entry, every byte of it verified; a damaged one is set aside."""
    try:
        return tier.get(wanted.kind, wanted.key) is not None
    except DamagedEntryError:
        return False


def in_parallel(
    work: Callable[[list[_In]], _Out],
    groups: Iterable[list[_In]],
    *,
    jobs: int,
    stop: threading.Event | None = None,
) -> list[_Out]:
    """Return what ``work`` returns for each group, in order, ``jobs`` at once.

    The first exception is raised, when what runs has ended; ``stop`` is set then, and what has not begun never does.
    """
    with ThreadPoolExecutor(jobs, thread_name_prefix="neff-cache") as pool:
        futures = [pool.submit(work, group) for group in groups]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # first: what ends at ``stop`` makes room for the next
            if stop is not None:
                stop.set()
            raise
    return [future.result() for future in futures]


def _size(entry: Entry) -> int:
    output = entry.output()
    return 0 if output is None else output.size


def _chunks(items: Sequence[_In], size: int) -> Iterator[list[_In]]:
    for begin in range(0, len(items), size):
        yield list(items[begin : begin + size])


def _groups(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Put small programs together and leave large ones alone."""
    groups: list[list[Entry]] = []
    size = GROUP_BYTES
    for entry in entries:
        if size + _size(entry) > GROUP_BYTES or len(groups[-1]) >= GROUP_ENTRIES:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += _size(entry)
    return groups


class _Budget:
    """Bytes that may be held at once, over all threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._changed = threading.Condition()

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Wait until there is room for ``size`` bytes, or until nobody else holds any."""
        size = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()
