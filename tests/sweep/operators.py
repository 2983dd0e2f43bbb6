"""docs/operators.md, made from the records: ``python -m tests.sweep.operators --write``."""

from __future__ import annotations

import sys
from pathlib import Path

from client.cli.output import print_or_write
from tests.sweep import report
from tests.sweep.outcome import CRASH, HOST, NO_REFERENCE, OK, UNSUPPORTED, WRONG, Outcome, Task

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"

COLUMNS = (
    Task("lowered", "float32", gradient=False, samples=2),
    Task("lowered", "float32", gradient=True, samples=2),
    Task("device", "float32", gradient=True, samples=2),
)
FURTHER = ("bfloat16", "float16", "int64", "bool", "complex64")

_HEAD = """# Operators

What `device="neuron"` and `torch.compile(backend="neuron")` carry, measured with PyTorch's own operator database
(OpInfo): every entry that runs on the CPU, one or two samples each, compared with the CPU's results. This page is
generated: `python -m tests.sweep` measures, with `--record` it updates the lists in `tests/sweep/records`, and
`python -m tests.sweep.operators --write` makes this page of them.

**lowered**: the graph path. The whole graph, forward or forward and backward, becomes one StableHLO program each,
without a custom call; nothing runs on the host. **device**: the eager path, forward and backward; *host* says that some
operator in it ran on the CPU, with one warning that names it. A graph that cannot be lowered raises one exception that
names the operator, or, by default, runs operator by operator.
"""

_CELL = {OK: "yes", HOST: "host", UNSUPPORTED: "no", WRONG: "wrong", CRASH: "crash", NO_REFERENCE: "", None: ""}


def document() -> str:
    """Return the page that the records make."""
    found = {
        task.name: {each.operator: each for each in report.read_record(report.record_path(task))} for task in COLUMNS
    }
    lines = [_HEAD, "## Totals", "", *_totals(), "", "## By family", ""]
    names = sorted({name for column in found.values() for name in column})
    columns = list(found.values())
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(_family(name), []).append(name)
    for family, members in sorted(families.items()):
        lines += [
            f"### {family}",
            "",
            "| operator | lowered | with gradient | device | reason |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(name, [column.get(name) for column in columns]) for name in members]
        lines.append("")
    return "\n".join(lines)


def recorded() -> list[Task]:
    """Return the columns that have a record."""
    further = [Task(mode, dtype, mode == "device", 2) for dtype in FURTHER for mode in ("lowered", "device")]
    return [task for task in (*COLUMNS, *further) if report.record_path(task).exists()]


def _totals() -> list[str]:
    lines = ["| column | entries | yes | host | no | wrong | crash |", "|---|---|---|---|---|---|---|"]
    for task in recorded():
        outcomes = [each for each in report.read_record(report.record_path(task)) if each.status != NO_REFERENCE]
        counts = [sum(each.status == status for each in outcomes) for status in (OK, HOST, UNSUPPORTED, WRONG, CRASH)]
        lines.append(f"| {task.name} | {len(outcomes)} | " + " | ".join(map(str, counts)) + " |")
    return lines


def _family(name: str) -> str:
    head, dot, _ = name.partition(".")
    known = {"linalg", "fft", "special", "masked", "signal", "nn"}
    if dot and head in known:
        return "nn.functional" if head == "nn" else head
    return "torch"


def _row(name: str, outcomes: list[Outcome | None]) -> str:
    cells = [_CELL[each.status if each else None] for each in outcomes]
    reasons = dict.fromkeys(each.reason for each in outcomes if each and each.status not in {OK, NO_REFERENCE})
    reason = "; ".join(reasons).replace("|", "\\|").replace("<", "&lt;")
    return f"| {name} | " + " | ".join(cells) + f" | {reason} |"


def main() -> int:
    """Write the page, or print it."""
    print_or_write(DOCUMENT, document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
