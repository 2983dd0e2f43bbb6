"""Tables of outcomes, and the lists of them that the repository keeps."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sweep.outcome import NO_REFERENCE, OK, STATUSES, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.sweep.outcome import Task

RECORDS = Path(__file__).parent / "records"
_SAMPLES = "# samples: "


def table(outcomes: Sequence[Outcome]) -> str:
    """One line for each operator that is not simply right, then the reasons by how often they came, then totals."""
    lines = [
        f"{each.operator:48} {each.status:12} {each.reason}"
        for each in outcomes
        if each.status not in {OK, NO_REFERENCE}
    ]
    reasons = Counter((each.status, _gist(each.reason)) for each in outcomes if each.status not in {OK, NO_REFERENCE})
    lines += ["", *(f"{count:4} {status:12} {gist}" for (status, gist), count in reasons.most_common())]
    return "\n".join([*lines, "", totals(outcomes)])


def totals(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(each.status for each in outcomes)
    return f"{len(outcomes)} operators: " + ", ".join(f"{counts[each]} {each}" for each in STATUSES)


def _gist(reason: str) -> str:
    return re.sub(r"\d+", "N", reason)[:90]


def record_path(task: Task) -> Path:
    return RECORDS / f"{task.name}.tsv"


def write_record(task: Task, outcomes: Iterable[Outcome]) -> None:
    """Write the list of a whole column, sorted so that a difference is short, below how many samples it is of."""
    RECORDS.mkdir(exist_ok=True)
    lines = [f"{each.operator}\t{each.status}\t{_stable(each.reason)}".rstrip() for each in outcomes]
    record_path(task).write_text("".join(f"{line}\n" for line in [f"{_SAMPLES}{task.samples}", *sorted(lines)]))


def read_record(path: Path) -> list[Outcome]:
    """Read what `write_record` wrote."""
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return [Outcome(row[0], row[1], row[2] if len(row) > 2 else "") for row in rows]


def samples_of(path: Path) -> int:
    """Return how many samples of each operator a record is of, at least."""
    return int(path.read_text().partition("\n")[0].removeprefix(_SAMPLES))


def _stable(reason: str) -> str:
    """Leave out what differs from run to run."""
    return re.sub(r"0x[0-9a-f]+", "0x…", reason)
