"""The page of PyTorch's own tests, made of the records: ``python -m tests.upstream.page --write``."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from client.cli.output import print_or_write
from tests.sweep.runner import ROOT
from tests.upstream import files, record
from tests.upstream.known import why
from tests.upstream.outcome import CRASH, ERROR, EXPECTED, GOOD, HANG, LIMIT, PASSED, SKIPPED, STATUSES, WRONG, Outcome
from tests.upstream.reasons import gist, kind

if TYPE_CHECKING:
    from collections.abc import Iterable

DOCUMENT = ROOT / "docs" / "upstream.md"

_HEAD = """# PyTorch's own tests

PyTorch's test files, which are no part of this repository, judge the device: their tests are made for `neuron` as for
any device outside PyTorch's tree, tests of no device run with `neuron` as the default device, and whatever they give to
inductor goes to `backend="neuron"`. A test counts only if it passes with the CPU in its place on the same torch
({torch}); the files may be of an older version, so many do not. These are samples, chosen by the digests of the tests'
names: *tests* is what a file makes for the device, *run* how many of those that count were run.

Made by `make upstream` with `NEURON_UPSTREAM_TESTS=FOLDER`, or `python -m tests.upstream FILE… --share N --record`.
A test runs by itself with `python -m tests.upstream FILE --match NAME`.

{totals}

## File by file

| file | tests | run | {statuses} | no CPU run to compare |
|---|---|---|{dashes}---|
"""
_FAILED = """
## What failed, by reason

| what | class | reason | tests | such as | known |
|---|---|---|---|---|---|
"""
_ORDER = {status: number for number, status in enumerate((CRASH, HANG, WRONG, ERROR, LIMIT))}
_EXAMPLES = 3


def document() -> str:
    """Return the page."""
    rows, everything = [], []
    for file in files.FILES:
        held = record.read(file, "neuron")
        cpu = record.read(file, "cpu")
        if not held.tests and not held.unloaded:
            continue
        outcomes = list(held.outcomes.values())
        everything += [(file, each) for each in outcomes]
        counts = Counter(each.status for each in outcomes)
        other = sum(each.status != PASSED for each in cpu.outcomes.values())
        cells = [held.unloaded] if held.unloaded else [str(held.tests), str(len(outcomes))]
        cells += [str(counts[status] or "") for status in STATUSES] + [str(other or "")]
        rows.append(f"| {file} | {' | '.join(cells)} |\n")
    counts = Counter(each.status for _, each in everything)
    totals = f"{len(everything)} run: {', '.join(f'{counts[s]} {s}' for s in STATUSES if counts[s])}."
    head = _HEAD.format(
        torch=record.torch_version(), totals=totals, statuses=" | ".join(STATUSES), dashes="---|" * len(STATUSES)
    )
    return "".join([head, *rows, *_classes(each for _, each in everything), *_failures(everything)])


def _classes(outcomes: Iterable[Outcome]) -> list[str]:
    counts = Counter((each.status, kind(each)) for each in outcomes if each.status not in {PASSED, EXPECTED})
    lines = ["\n## Classes\n\n| what | class | tests |\n|---|---|---|\n"]
    order = sorted(counts.items(), key=lambda item: (item[0][0] == SKIPPED, -item[1], item[0]))
    return [*lines, *(f"| {status} | {name} | {count} |\n" for (status, name), count in order)]


def _failures(everything: Iterable[tuple[str, Outcome]]) -> list[str]:
    groups: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for file, each in everything:
        if each.status not in GOOD:
            groups[_ORDER[each.status], kind(each), gist(each.reason)].append(f"{file} {each.name}")
    names = {number: status for status, number in _ORDER.items()}
    lines = [_FAILED]
    for (number, name, reason), tests in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0])):
        shown = reason.replace("|", "\\|").replace("`", "'")
        lines.append(
            f"| {names[number]} | {name} | `{shown}` | {len(tests)} | {'; '.join(sorted(tests)[:_EXAMPLES])} | "
            f"{next(filter(None, map(why, sorted(tests))), '')} |\n"
        )
    return lines


if __name__ == "__main__":
    print_or_write(DOCUMENT, document())
