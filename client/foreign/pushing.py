"""Brings a tree's complete entries into the shared cache. What is there already is not sent again."""

from __future__ import annotations

import datetime as dt
import hashlib
import socket
import threading
from typing import TYPE_CHECKING

from client import neff
from client._version import __version__
from client.errors import FormatError
from client.foreign.names import ForeignName
from client.foreign.npc import FLAGS, target_in
from client.foreign.outcome import Outcome
from client.foreign.scan import MAX_TEXT, Candidate, LeftOut, Why, scan
from client.foreign.tree import UnreadableError
from client.names import MAIN_OUTPUT, Kind
from client.pulling import JOBS, SILENT, in_parallel
from client.wire import Entry, Output, Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from client.foreign.host import Host
    from client.foreign.layout import Layout
    from client.foreign.shared import SharedForeign
    from client.foreign.tree import Listed, Tree
    from client.pulling import Progress
    from client.signing.signer import Signer


class Pusher:
    """Pushes from one tree. May be run again and again: an entry that has not changed is then not looked at twice.

    ``only_own`` leaves entries of other compilers than this host's alone, where their names tell. ``signer``
    signs what is pushed. ``stop`` ends a run early.
    """

    def __init__(
        self,
        tree: Tree,
        layout: Layout,
        shared: SharedForeign,
        host: Host,
        *,
        signer: Signer | None = None,
        label: str = "",
        only_own: bool = False,
        jobs: int = JOBS,
        dry_run: bool = False,
        progress: Progress = SILENT,
        stop: threading.Event | None = None,
    ) -> None:
        self._tree = tree
        self._layout = layout
        self._shared = shared
        self._host = host
        self._signer = signer
        self._label = label
        self._only_own = only_own
        self._jobs = jobs
        self._dry_run = dry_run
        self._progress = progress
        self._stop = stop or threading.Event()
        self._lock = threading.Lock()
        self._seen: dict[str, object] = {}

    def push(self, listed: Iterable[Listed] | None = None) -> Outcome:
        """Push what is complete, and not pushed yet. ``listed`` is the tree's listing, if somebody has it.

        Raises `client.errors.ConfigurationError` if version or target would have to be guessed, and
        `client.errors.TransportError` if the shared cache, or the bucket that is read, cannot be asked.
        """
        found = scan(self._tree.files() if listed is None else listed, self._layout)
        outcome = Outcome(left_out=found.left_out)
        new = [each for each in found.complete if self._seen.get(each.name) != each.stamp]
        named = self._named(self._admitted(new, outcome), outcome)
        there = self._whole(self._shared.find([name.key for name, _ in named]).values())
        left = []
        for name, candidate in named:
            if name.key in there:
                outcome.present.append(name)
                self._seen[candidate.name] = candidate.stamp
            else:
                left.append((name, candidate))
        self._progress.total(len(left), sum(candidate.size for _, candidate in left))
        if self._dry_run:
            outcome.moved = [name for name, _ in left]
            outcome.bytes = sum(candidate.size for _, candidate in left)
            return outcome
        in_parallel(lambda each: self._send(*each[0], outcome), ([each] for each in left), jobs=self._jobs)
        return outcome

    def _whole(self, entries: Iterable[Entry]) -> set[str]:
        """Return the keys of those that stand there whole; what does not is set aside, and pushed anew."""
        found = list(entries)
        if self._dry_run:
            return {entry.key for entry in found}
        whole = in_parallel(lambda each: self._shared.is_whole(each[0]), ([entry] for entry in found), jobs=self._jobs)
        return {entry.key for entry, stands in zip(found, whole, strict=True) if stands}

    def _admitted(self, candidates: Sequence[Candidate], outcome: Outcome) -> list[Candidate]:
        """Leave out what some other compiler has built."""
        admitted = []
        for candidate in candidates:
            version = self._layout.compiler_version(candidate.name)
            if version is None:
                since = self._host.require_since()
                if candidate.modified < since:
                    text = f"written {_date(candidate.modified)}, the compiler is from {_date(since)}"
                    outcome.left_out.append(LeftOut(Why.OLD, candidate.name, text))
                    continue
            elif self._only_own and version != self._host.require_version():
                outcome.left_out.append(LeftOut(Why.OTHER, candidate.name))
                continue
            admitted.append(candidate)
        return admitted

    def _named(self, candidates: Sequence[Candidate], outcome: Outcome) -> list[tuple[ForeignName, Candidate]]:
        names = in_parallel(lambda each: self._name(each[0], outcome), ([each] for each in candidates), jobs=self._jobs)
        return [(name, each) for name, each in zip(names, candidates, strict=True) if name is not None]

    def _name(self, candidate: Candidate, outcome: Outcome) -> ForeignName | None:
        version = self._layout.compiler_version(candidate.name) or self._host.require_version()
        target = None
        flags = next((candidate.files[name] for name in FLAGS if name in candidate.files), None)
        if flags is not None and flags.size <= MAX_TEXT:
            try:
                target = target_in(self._tree.read(flags))
            except UnreadableError as error:
                self._leave(outcome, LeftOut(Why.CHANGED, candidate.name, str(error)))
                return None
        name = ForeignName(self._layout.kept_as, candidate.name, version, target or self._host.require_target())
        return ForeignName.of(name.document())

    def _send(self, name: ForeignName, candidate: Candidate, outcome: Outcome) -> None:
        if self._stop.is_set():
            return
        try:
            outputs = {output: self._tree.read(file) for output, file in sorted(candidate.files.items())}
        except UnreadableError as error:
            self._leave(outcome, LeftOut(Why.CHANGED, candidate.name, str(error)))
            return
        try:
            neff.validate(outputs[MAIN_OUTPUT])
        except FormatError as error:
            self._leave(outcome, LeftOut(Why.DAMAGED, candidate.name, str(error)))
            self._seen[candidate.name] = candidate.stamp
            return
        entry = self._entry(name, candidate, outputs)
        created = self._shared.publish(entry if self._signer is None else self._signer.sign(entry, outputs), outputs)
        with self._lock:
            self._seen[candidate.name] = candidate.stamp
            (outcome.moved if created else outcome.present).append(name)
            outcome.bytes += candidate.size if created else 0
        self._progress.done(1, candidate.size)

    def _entry(self, name: ForeignName, candidate: Candidate, outputs: Mapping[str, bytes]) -> Entry:
        return Entry(
            project=self._shared.project,
            kind=Kind.FOREIGN,
            key=name.key,
            outputs=tuple(
                Output(output, hashlib.sha256(content).hexdigest(), len(content)) for output, content in outputs.items()
            ),
            created=_date(candidate.modified),
            compile_seconds=0.0,  # no cache of the three keeps it
            producer=Producer(f"neff-cache/{__version__}", socket.gethostname(), self._label),
            key_document=name.document(),
        )

    def _leave(self, outcome: Outcome, left_out: LeftOut) -> None:
        with self._lock:
            outcome.left_out.append(left_out)


def _date(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
