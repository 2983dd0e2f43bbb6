"""docs/operators.md, made from the records: ``python -m tests.sweep.operators --write``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from client.cli.output import print_or_write
from tests.sweep import report
from tests.sweep.outcome import CRASH, HOST, NO_REFERENCE, OK, UNSUPPORTED, WRONG, Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"

SECOND_OPINION = "torch_mlir"

# The page's columns: what stands above them, and whose outcomes the cell has.
TABLE = (
    ("float32", ("lowered-float32",)),
    ("gradient", ("lowered-float32-gradient",)),
    ("on device", ("device-float32-gradient",)),
    *(
        (column.replace("-", ", "), (f"lowered-{column}", f"device-{column}"))
        for column in ("bfloat16", "bfloat16-gradient", "float16", "int64", "bool", "complex64")
    ),
    ("Torch-MLIR", (f"{SECOND_OPINION}-float32",)),
    ("Torch-MLIR, gradient", (f"{SECOND_OPINION}-float32-gradient",)),
)

_HEAD = """# Operators

What `device="neuron"` and `torch.compile(backend="neuron")` carry, measured with PyTorch's own operator database
(OpInfo): every entry that runs on the CPU, with one or two of its samples, compared with the CPU's results. This page
is generated: `python -m tests.sweep` measures, with `--record` it updates the lists in `tests/sweep/records`, and
`python -m tests.sweep.operators --write` makes this page of them.

**lowered**: the graph path. The whole graph, forward or forward and backward, becomes one StableHLO program each,
without a custom call; nothing runs on the host. **device**: the eager path; *host* says that some operator in it ran on
the CPU, with one warning that names it. A graph that cannot be lowered raises one exception that names the operator,
or, by default, runs operator by operator. *The size of its result depends on values* and *Python reads its value*: no
compiled graph can hold such an operator, `torch.compile` breaks the graph there. Results in bfloat16 and float16 are
right where they are the CPU's, or those of the same call in float32.

**torch_mlir**: the same graphs lowered by Torch-MLIR (`torch-mlir` 20261001, its own decompositions on top of core
ATen's), then written, compiled, run and compared as ours are; *crash* is a process that died of a signal. See
[decision 1](decisions/0001-own-lowering-table.md). Its reasons are in `tests/sweep/records`, not in these tables.
"""

_LEGEND = """*float32* and *gradient* are the graph path, *on device* the eager one, forward and backward. In the other
columns one word is for both paths; of two, the first is the graph path. Empty: the CPU has no such operator, or no
derivative of it.
"""

_CELL = {OK: "yes", HOST: "host", UNSUPPORTED: "no", WRONG: "wrong", CRASH: "crash", NO_REFERENCE: ""}


def document() -> str:
    """Return the page that the records make."""
    found = {task.name: {each.operator: each for each in _outcomes(task)} for task in recorded()}
    lines = [_HEAD, "## Totals", "", *_totals(), "", "## By family", "", _LEGEND]
    families: dict[str, list[str]] = {}
    for name in sorted({name for column in found.values() for name in column}):
        families.setdefault(_family(name), []).append(name)
    for family, members in sorted(families.items()):
        lines += [
            f"### {family}",
            "",
            f"| operator | {' | '.join(heading for heading, _ in TABLE)} | reason |",
            "|---" * (len(TABLE) + 2) + "|",
        ]
        lines += [_row(name, found) for name in members]
        lines.append("")
    return "\n".join(lines)


def recorded() -> list[Task]:
    """Return the columns that have a record, each with the number of samples that it was measured with."""
    paths = [report.RECORDS / f"{name}.tsv" for _, names in TABLE for name in names]
    return [_task(path) for path in paths if path.exists()]


def ours() -> list[Task]:
    """Return the columns of the project's own paths: those that must not fall."""
    return [task for task in recorded() if task.mode != SECOND_OPINION]


def _task(path: Path) -> Task:
    mode, dtype, *gradient = path.stem.split("-")
    return Task(mode, dtype, gradient=bool(gradient), samples=report.samples_of(path))


def _outcomes(task: Task) -> list[Outcome]:
    return report.read_record(report.record_path(task))


def _totals() -> list[str]:
    lines = [
        "| column | samples of each | entries | yes | host | no | wrong | crash |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in recorded():
        outcomes = [each for each in _outcomes(task) if each.status != NO_REFERENCE]
        counts = [sum(each.status == status for each in outcomes) for status in (OK, HOST, UNSUPPORTED, WRONG, CRASH)]
        lines.append(f"| {task.name} | {task.samples} | {len(outcomes)} | " + " | ".join(map(str, counts)) + " |")
    return lines


def _family(name: str) -> str:
    head, dot, _ = name.partition(".")
    known = {"linalg", "fft", "special", "masked", "signal", "nn"}
    if dot and head in known:
        return "nn.functional" if head == "nn" else head
    return "torch"


def _row(name: str, found: Mapping[str, Mapping[str, Outcome]]) -> str:
    outcomes = {column: outcomes[name] for column, outcomes in found.items() if name in outcomes}
    cells = [_cell([outcomes[column] for column in columns if column in outcomes]) for _, columns in TABLE]
    reasons = _reason([outcome for column, outcome in outcomes.items() if not column.startswith(SECOND_OPINION)])
    return f"| {name} | " + " | ".join(cells) + f" | {reasons} |"


def _cell(outcomes: Sequence[Outcome]) -> str:
    """One word where the paths agree, else that of the graph path and that of the eager one."""
    return "/".join(dict.fromkeys(_CELL[each.status] for each in outcomes if _CELL[each.status]))


def _reason(outcomes: Sequence[Outcome]) -> str:
    hosted = sorted({operator for each in outcomes if each.status == HOST for operator in each.reason.split()})
    reasons = dict.fromkeys(each.reason for each in outcomes if each.status not in {OK, HOST, NO_REFERENCE})
    whole = [*reasons, *(["on the host: " + " ".join(hosted)] if hosted else [])]
    return "; ".join(whole).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    """Write the page, or print it."""
    print_or_write(DOCUMENT, document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
