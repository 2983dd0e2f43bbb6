"""The page of architectures in the documentation, made of the records: ``python -m tests.models.page --write``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.cli.output import print_or_write
from tests.models import report
from tests.models.outcome import EAGER, GRAPH, Figures
from tests.sweep.outcome import HOST, OK
from tests.sweep.runner import ROOT

if TYPE_CHECKING:
    from collections.abc import Collection

DOCUMENT = ROOT / "docs" / "models.md"

_HEAD = """# Models that run

Model code that none of us wrote, from transformers, torchvision and timm, in small configurations with random weights:
one training step (forward and backward, in training mode, dropout off) on the stand-in, eagerly and by
`torch.compile(backend="neuron")`, against the CPU. *Right* means outputs, all gradients and changed buffers: no further
from a float64 run than {slack} times what the CPU itself loses in float32, and the rounding of a few operations.
*Programs* are what an empty cache has to compile; operators that ran on the CPU are named.

Made by `python -m tests.models --record` and `python -m tests.models.page --write`; `make soak` runs all of them again,
`make test` a few. A mixture of experts runs with `set_experts_implementation("batched_mm")`, the one of fixed shapes.

{totals}

| architecture | eager | programs | compiled | programs | graphs | breaks |
|---|---|---|---|---|---|---|
"""


def document() -> str:
    """Return the page."""
    from tests.models.running import SLACK  # noqa: PLC0415 - torch takes seconds

    eager, graph = report.read_record(EAGER), report.read_record(GRAPH)
    names = sorted({*eager, *graph}, key=lambda name: ("/" in name, name))
    rows = []
    for name in names:
        cells = [name]
        for record, fields in ((eager, ("programs",)), (graph, ("programs", "graphs", "breaks"))):
            row = record.get(name)
            cells += (
                ["", *("" for _ in fields)] if row is None else [_said(row), *(str(getattr(row, f)) for f in fields)]
            )
        rows.append(f"| {' | '.join(cells)} |\n")
    totals = "; ".join(_total(title, record.values()) for title, record in (("Eager", eager), ("Compiled", graph)))
    return _HEAD.format(slack=SLACK, totals=f"{totals}.") + "".join(rows)


def _said(row: Figures) -> str:
    if row.status == OK:
        return "right"
    return f"right; on the CPU: {row.reason}" if row.status == HOST else f"{row.status}: {row.reason}"


def _total(title: str, rows: Collection[Figures]) -> str:
    right = sum(row.status in {OK, HOST} for row in rows)
    host = sum(row.status == HOST for row in rows)
    return f"{title}: {right} of {len(rows)} right, {host} of them with operators on the CPU"


if __name__ == "__main__":
    print_or_write(DOCUMENT, document())
