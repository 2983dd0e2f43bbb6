"""The table of architectures, and the list of them that the repository keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from tests.models.outcome import Figures
from tests.sweep.outcome import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.sweep.outcome import Task

RECORDS = Path(__file__).parent / "records"
# Neither time nor rounding: what stands in the repository is the same wherever it is made.
_KEPT = ("operator", "status", "reason", "programs", "graphs", "breaks", "host")


def table(rows: Sequence[Figures]) -> str:
    """One line for each architecture, then totals; the error is a share of what is allowed."""
    head = ("architecture", "status", "compiles", "graphs", "breaks", "error", "s", "on the CPU, or why not")
    body = [
        (
            *(each.operator, each.status, str(each.programs), str(each.graphs), str(each.breaks)),
            *(f"{each.error:.3f}", f"{each.seconds:.1f}", each.reason),
        )
        for each in rows
    ]
    lines = [
        f"{name:32} {status:12} {programs:>8} {graphs:>6} {breaks:>6} {error:>8} {seconds:>6}  {reason}"
        for name, status, programs, graphs, breaks, error, seconds, reason in (head, *body)
    ]
    counts = Counter(each.status for each in rows)
    totals = ", ".join(f"{counts[each]} {each}" for each in STATUSES)
    return "\n".join([*lines, "", f"{len(rows)} architectures: {totals}"])


def record_path(task: Task) -> Path:
    return RECORDS / f"{task.mode}.tsv"


def write_record(task: Task, rows: Iterable[Figures]) -> None:
    """Write the list of one path, sorted so that a difference is short."""
    RECORDS.mkdir(exist_ok=True)
    lines = sorted("\t".join(str(getattr(each, name)) for name in _KEPT) for each in rows)
    record_path(task).write_text("".join(f"{line}\n" for line in ["\t".join(_KEPT), *lines]))


def read_record(task: Task) -> dict[str, Figures]:
    """Read what `write_record` wrote; empty if nothing was."""
    if not record_path(task).exists():
        return {}
    head, *lines = (line.split("\t") for line in record_path(task).read_text().splitlines())
    kinds = {field.name: int if field.type == "int" else str for field in fields(Figures)}
    rows = [Figures(**{name: kinds[name](value) for name, value in zip(head, line, strict=True)}) for line in lines]
    return {each.operator: each for each in rows}
