"""What a tree holds: the complete entries of a layout, and what is left out, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from client.foreign.layout import State
from client.names import MAIN_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from client.foreign.layout import Layout
    from client.foreign.tree import Listed

MAX_TEXT = 1 << 20
"""Bytes of the largest file of flags that is read for the target in it."""


class Why(StrEnum):
    """Why something was left out."""

    FAILED = "failed compile"
    LOCKED = "locked"
    HALF = "half written"
    UNKNOWN = "not of this layout"
    REFUSED = "refused"
    DAMAGED = "damaged"
    OLD = "older than the compiler"
    OTHER = "of another compiler or target"
    CHANGED = "changed meanwhile"
    MISSING = "missing in the shared cache"
    UNTRUSTED = "signed by nobody who is trusted"


_WHY = {State.FAILED: Why.FAILED, State.LOCKED: Why.LOCKED, State.HALF: Why.HALF}


class LeftOut(NamedTuple):
    """A file or an entry that was left out: why in a word, which one, and what there is to say about it."""

    why: Why
    what: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A complete entry: what would be stored of it, as output names."""

    name: str
    files: Mapping[str, Listed]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    @property
    def modified(self) -> float:
        """When its program was written: seconds since the epoch."""
        return self.files[MAIN_OUTPUT].modified

    @property
    def stamp(self) -> tuple[tuple[str, int, float], ...]:
        """What tells one state of the files from another."""
        return tuple(sorted((output, file.size, file.modified) for output, file in self.files.items()))


@dataclass(slots=True)
class Scan:
    """The complete entries of a tree, by name, and what is left out."""

    complete: list[Candidate] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def scan(listed: Iterable[Listed], layout: Layout) -> Scan:
    """Sort a listing by entries."""
    found = Scan()
    entries: dict[str, dict[str, Listed]] = {}
    for file in listed:
        place = layout.place(file.path)
        if file.refusal:
            # whether of an entry or not: nothing that lies beside it is taken for whole
            found.left_out.append(LeftOut(Why.REFUSED, file.path, file.refusal))
        if place is not None:
            entries.setdefault(place.name, {})[place.file] = file
        elif not file.refusal:
            found.left_out.append(LeftOut(Why.UNKNOWN, file.path))
    for name, files in sorted(entries.items()):
        if any(file.refusal for file in files.values()):
            continue
        state = layout.state(name, files)
        if state is State.COMPLETE:
            names = layout.outputs(name)
            found.complete.append(
                Candidate(name, {names[file]: listed for file, listed in files.items() if file in names})
            )
        else:
            found.left_out.append(LeftOut(_WHY[state], name))
    return found
