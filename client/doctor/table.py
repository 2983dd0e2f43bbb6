"""The table of checks, and how it is worked through."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from client.doctor import node, other_caches, server, shadowing, signatures, variables, versions
from client.doctor.base import Finding, Row, State, problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from client.doctor.base import Surroundings

GROUP = "neff_cache.checks"

OWN: tuple[Row, ...] = (
    Row("versions", versions.check),
    Row("settings", variables.check_settings),
    Row("look-alikes", variables.check_look_alikes),
    Row("other caches", other_caches.check),
    Row("shadowing", shadowing.check),
    Row("node tier", node.check),
    Row("shared cache", server.check),
    Row("signatures", signatures.check),
)


class Line(NamedTuple):
    """One line of the report."""

    name: str
    finding: Finding


def rows() -> Iterator[Row]:
    """Yield our own rows, then those of other packages."""
    yield from OWN
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            added: Sequence[Row] = entry.load()
            yield from added
        except Exception as error:  # noqa: BLE001 - somebody else's module, and doctor has to survive what it examines
            yield Row(entry.name, _failing(f"its checks cannot be loaded: {_said(error)}"))


def examine(surroundings: Surroundings) -> Iterator[Line]:
    """Work through all rows, and yield what each finds as it does."""
    for row in rows():
        try:
            for finding in row.check(surroundings):
                yield Line(row.name, finding)
        except Exception as error:  # noqa: BLE001 - see above
            yield Line(row.name, problem(f"this check failed: {_said(error)}", "please report this"))


def is_healthy(lines: Sequence[Line]) -> bool:
    """Return whether nothing in the report is a problem."""
    return all(line.finding.state is not State.PROBLEM for line in lines)


def _failing(text: str) -> Callable[[Surroundings], Iterator[Finding]]:
    def check(_: Surroundings) -> Iterator[Finding]:
        yield problem(text, "install the package anew, or remove it")

    return check


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
