"""Plans: the entries that a run used, as ``NEURON_CACHE_RECORD`` writes them, one JSON object a line.

Written by many processes that may be killed, so that an entry may stand in a plan several times. What cannot be read is
an error that names the line, never a shorter plan: plans decide whether something is deployed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.errors import ConfigurationError, FormatError, WireError
from client.names import Kind, check_digest, check_kind, check_project
from client.node.tree import temporary_beside
from client.record import RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MAX_PLAN = 256 << 20
"""Bytes of the largest plan that is read: more than a million entries."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry that a run used. ``label`` and ``compile_seconds`` are what the run knew of it."""

    project: str
    kind: Kind
    key: str
    label: str = ""
    compile_seconds: float = 0.0

    @property
    def name(self) -> tuple[Kind, str]:
        """Kind and key."""
        return self.kind, self.key

    def __str__(self) -> str:
        """Return ``kind/key``."""
        return f"{self.kind.value}/{self.key}"


def parse_plan(raw: bytes, project: str, *, where: str = "the plan") -> list[Wanted]:
    """Return the entries of a plan, each once, in the order of their first use.

    ``project`` is that of lines which name none. Raises `FormatError` with the line's number.
    """
    found: dict[tuple[str, Kind, str], Wanted] = {}
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            wanted = _parse_line(line, project)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"line {number} of {where} names no entry: {error}") from error
        found.setdefault((wanted.project, wanted.kind, wanted.key), wanted)
    return list(found.values())


def _parse_line(line: bytes, project: str) -> Wanted:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise WireError("a JSON object is expected")
    seconds = value.get("compile_seconds")
    return Wanted(
        project=check_project(str(value.get("project") or project)),
        kind=check_kind(str(value.get("kind"))),
        key=check_digest(str(value.get("key"))),
        label=str(value.get("label") or ""),
        compile_seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
    )


def read_plan(path: Path, project: str) -> list[Wanted]:
    """Return the entries of the plan in a file, or on standard input if it is called ``-``.

    Raises `FormatError`, and `ConfigurationError` for a file that cannot be read.
    """
    if str(path) == "-":
        return parse_plan(_bounded(sys.stdin.buffer.read(MAX_PLAN + 1), "standard input"), project)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_PLAN + 1)
    except OSError as error:
        raise ConfigurationError(f"the plan {path} cannot be read: {error.strerror}") from error
    return parse_plan(_bounded(raw, str(path)), project, where=str(path))


def write_plan(path: Path, plan: Iterable[Wanted]) -> None:
    """Write a plan, whole or not at all, in the form of ``NEURON_CACHE_RECORD``; raises `ConfigurationError`."""
    lines = [
        json.dumps(
            {
                "schema": RECORD_SCHEMA,
                "project": each.project,
                "kind": each.kind.value,
                "key": each.key,
                "label": each.label,
                "compile_seconds": each.compile_seconds,
            },
            separators=(",", ":"),
        )
        for each in plan
    ]
    temporary = temporary_beside(path)
    try:
        temporary.write_text("".join(f"{line}\n" for line in lines))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(f"the plan {path} cannot be written: {error.strerror}") from error


def find_plan(text: str, path: Path, project: str, stored: Callable[[str], bytes | None] | None) -> list[Wanted]:
    """Return the plan called ``text``: a file (``path``), or else one that the server keeps under that name.

    ``stored`` asks the server, and is None where there is none. Raises `ConfigurationError` if it is neither.
    """
    if text == "-" or "/" in text or path.exists():
        return read_plan(path, project)
    if stored is None:
        raise ConfigurationError(
            f"there is no file {text!r}, and plans are kept by name only on a server (NEURON_CACHE_URL=http…)"
        )
    raw = stored(text)
    if raw is None:
        raise ConfigurationError(f"{text!r} is neither a file nor a plan that the server keeps for project {project}")
    return parse_plan(raw, project, where=f"the stored plan {text}")


def by_project(plan: Iterable[Wanted]) -> dict[str, list[Wanted]]:
    """Return the plan's entries by project."""
    groups: dict[str, list[Wanted]] = {}
    for wanted in plan:
        groups.setdefault(wanted.project, []).append(wanted)
    return groups


def _bounded(raw: bytes, where: str) -> bytes:
    if len(raw) > MAX_PLAN:
        raise ConfigurationError(f"{where} holds more than the {MAX_PLAN} bytes of the largest plan that is read")
    return raw
