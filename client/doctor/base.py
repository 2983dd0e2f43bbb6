"""What a check is, and what it finds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from client.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    """How a finding is meant. Only a `PROBLEM` makes `doctor` fail."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what it is, how it is, and what to do about it ("" if nothing)."""

    state: State
    text: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return {"state": str(self.state), "text": self.text, "advice": self.advice}


def ok(text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(State.OK, text)


def note(text: str, advice: str = "") -> Finding:
    """Return a finding that may explain something, and is no fault."""
    return Finding(State.NOTE, text, advice)


def problem(text: str, advice: str) -> Finding:
    """Return a finding that keeps the cache from working as it should; ``advice`` says what to do."""
    return Finding(State.PROBLEM, text, advice)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What checks look at. ``folders`` are those that Python imports modules from before the installed packages."""

    environ: Mapping[str, str]
    settings: Settings
    folders: tuple[Path, ...] = ()
    now: Callable[[], float] = field(default=time.time)

    @classmethod
    def here(cls, url: str | None = None) -> Surroundings:
        """Return those of a job that is started in this folder, with this environment, and ``url`` if it is given."""
        environ = {**os.environ, **({"NEURON_CACHE_URL": url} if url else {})}
        settings = Settings.from_environment({**environ, "NEURON_CACHE_ON_ERROR": "continue"})
        paths = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        return cls(environ, settings, (Path.cwd(), *map(Path, paths)))


Check: TypeAlias = Callable[[Surroundings], Iterable[Finding]]


class Row(NamedTuple):
    """One row of the table: what is looked at, and the function that looks. It may raise; the row then says so."""

    name: str
    check: Check
