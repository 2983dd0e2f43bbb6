"""Brings foreign entries of the shared cache into the directory of the cache that they come from."""

from __future__ import annotations

import hashlib
import threading
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from client import neff
from client.errors import FormatError, WireError
from client.foreign.layout import State
from client.foreign.outcome import Outcome
from client.foreign.scan import LeftOut, Why
from client.foreign.shared import name_of
from client.names import MAIN_OUTPUT
from client.pulling import GROUP_BYTES, GROUP_ENTRIES, JOBS, SILENT, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from client.foreign.layout import Layout
    from client.foreign.names import ForeignName
    from client.foreign.shared import SharedForeign
    from client.foreign.writing import There, Writer
    from client.pulling import Progress
    from client.signing.check import SignatureCheck
    from client.wire import Entry

_LEFT = {State.FAILED: Why.FAILED, State.LOCKED: Why.LOCKED, State.HALF: Why.HALF}
_MARKS = "remove its folder to have it written"


class _Wanted(NamedTuple):
    name: ForeignName
    entry: Entry
    files: Mapping[str, str]
    """Output names by file names."""

    @property
    def size(self) -> int:
        return sum(output.size for output in self.entry.outputs)


class Puller:
    """Pulls into one directory. May be run again and again: what is known to be there is not looked at twice.

    ``check`` judges signatures, if they are asked for. ``stop`` ends a run early.
    """

    def __init__(
        self,
        shared: SharedForeign,
        layout: Layout,
        writer: Writer,
        *,
        check: SignatureCheck | None = None,
        jobs: int = JOBS,
        dry_run: bool = False,
        progress: Progress = SILENT,
        stop: threading.Event | None = None,
    ) -> None:
        self._shared = shared
        self._layout = layout
        self._writer = writer
        self._check = check
        self._jobs = jobs
        self._dry_run = dry_run
        self._progress = progress
        self._stop = stop or threading.Event()
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def pull(self, entries: Iterable[Entry]) -> Outcome:
        """Write those of ``entries`` that are not there.

        Raises `client.errors.TransportError` if the shared cache cannot be asked, `OSError` of the directory.
        """
        outcome = Outcome()
        if not self._dry_run:
            self._writer.sweep()
        wanted = [found for entry in entries if (found := self._wanted(entry, outcome)) is not None]
        self._progress.total(len(wanted), sum(each.size for each in wanted))
        if self._dry_run:
            outcome.moved = [each.name for each in wanted]
            outcome.bytes = sum(each.size for each in wanted)
            return outcome
        in_parallel(lambda group: self._take(group, outcome), _groups(wanted), jobs=self._jobs)
        return outcome

    def _wanted(self, entry: Entry, outcome: Outcome) -> _Wanted | None:
        """Return what is to be written, if the entry is of this layout and may be, and is not there."""
        try:
            name = name_of(entry)
        except WireError as error:
            outcome.left_out.append(LeftOut(Why.REFUSED, entry.key, str(error)))
            return None
        refusal = self._refusal(name, entry)
        if refusal is not None:
            outcome.left_out.append(refusal)
            return None
        there = None if name.name in self._known else self._writer.there(name.name)
        files = {file: output for file, output in self._layout.outputs(name.name).items() if entry.output(output)}
        wanted = _Wanted(name, entry, files)
        if name.name in self._known or (there is not None and there.state is State.COMPLETE):
            outcome.present.append(name)
            if there is not None and self._differs(wanted, there):
                outcome.differing.append(name.name)
            self._known.add(name.name)
            return None
        if there is not None:
            outcome.left_out.append(LeftOut(_LEFT[there.state], name.name, _MARKS))
            return None
        return wanted

    def _refusal(self, name: ForeignName, entry: Entry) -> LeftOut | None:
        layout = self._layout
        if name.layout != layout.kept_as:
            return LeftOut(Why.UNKNOWN, name.name, f"kept as {name.layout}")
        version = layout.compiler_version(name.name)
        if version is not None and version != name.compiler_version:
            return LeftOut(Why.REFUSED, name.name, f"its document names compiler {name.compiler_version}")
        known = set(layout.outputs(name.name).values())
        strange = [output.name for output in entry.outputs if output.name not in known]
        if strange:
            return LeftOut(Why.REFUSED, name.name, f"no file of this layout is called {', '.join(strange)}")
        if entry.output() is None:
            return LeftOut(Why.REFUSED, name.name, "it holds no program")
        trusted = self._check is None or self._check.admits(entry, self._shared.address)
        return None if trusted else LeftOut(Why.UNTRUSTED, name.name)

    def _differs(self, wanted: _Wanted, there: There) -> bool:
        """Return whether the program that stands there is another build."""
        main = wanted.entry.output()
        file = next(file for file, output in wanted.files.items() if output == MAIN_OUTPUT)
        if main is None or there.sizes.get(file) != main.size:
            return True
        content = self._writer.read(wanted.name.name, file)
        return content is None or hashlib.sha256(content).hexdigest() != main.sha256

    def _take(self, group: Sequence[_Wanted], outcome: Outcome) -> None:
        if self._stop.is_set():
            return
        by_key = {each.entry.key: each for each in group}
        with closing(self._shared.fetch([each.entry for each in group])) as stream:
            for entry, outputs in stream:
                self._store(by_key[entry.key], outputs, outcome)
                if self._stop.is_set():
                    return

    def _store(self, wanted: _Wanted, outputs: Mapping[str, bytes] | None, outcome: Outcome) -> None:
        name = wanted.name.name
        problem = None
        written = False
        if outputs is None:
            problem = LeftOut(Why.DAMAGED, name, "gone from the shared cache, or damaged there")
        else:
            try:
                neff.validate(outputs[MAIN_OUTPUT])
            except FormatError as error:
                problem = LeftOut(Why.DAMAGED, name, str(error))
            else:
                written = self._writer.write(name, {file: outputs[output] for file, output in wanted.files.items()})
        with self._lock:
            if problem is not None:
                outcome.left_out.append(problem)
            elif written:
                outcome.moved.append(wanted.name)
                outcome.bytes += wanted.size
                self._known.add(name)
            else:
                outcome.left_out.append(LeftOut(Why.CHANGED, name, "a job began to write it meanwhile"))
        self._progress.done(1, wanted.size)


def _groups(wanted: Iterable[_Wanted]) -> list[list[_Wanted]]:
    """Put small entries together and leave large ones alone."""
    groups: list[list[_Wanted]] = []
    size = GROUP_BYTES
    for each in wanted:
        if size + each.size > GROUP_BYTES or len(groups[-1]) >= GROUP_ENTRIES:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.size
    return groups
