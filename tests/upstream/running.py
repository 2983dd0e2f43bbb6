"""Run a share of a file's tests on the device: those that pass on the CPU of the same torch."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.upstream import choosing, record
from tests.upstream.child import Child, LoadError
from tests.upstream.files import CPU, NEURON
from tests.upstream.outcome import PASSED, Limits, Outcome

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

    from tests.upstream.files import Side

TRIED_FOR_EACH = 4
"""So many tests are tried on the CPU for each one wanted, until enough have passed there."""


class _Side:
    """A file's tests on one side, in as many processes as it takes."""

    def __init__(self, folder: Path, file: str, side: Side, limits: Limits) -> None:
        self._make: Callable[[str], Child] = lambda work: Child(folder, file, side, Path(work), limits)
        self._child: Child | None = None
        self._work = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

    def child(self) -> Child:
        if self._child is None or self._child.dead:
            self.end()
            self._child = self._make(self._work.name)
        return self._child

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()
        self._work.cleanup()


def judge(
    folder: Path,
    file: str,
    count: int,
    *,
    number: int = 0,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    seconds: float = float("inf"),
    pattern: re.Pattern[str] | None = None,
    records: Path = record.RECORDS,
    names: list[str] | None = None,
    progress: Callable[[Outcome], None] = lambda _outcome: None,
) -> record.Record:
    """Return what came of ``count`` tests of ``file`` that count, or of ``names``; fewer if ``seconds`` have passed.

    What the CPU says of a test is added to ``records`` at once: it is asked once for each version of torch.
    """
    with _Side(folder, file, NEURON, limits) as device:
        found = record.Record(file)
        try:
            tests = device.child().tests
        except LoadError as error:
            found.unloaded = str(error)
            return found
        found.tests = len(tests)
        until = time.monotonic() + seconds
        if names is None:
            names = [name for name in tests if pattern is None or pattern.search(name)]
        order = choosing.spread({name: tests[name] for name in names if name in tests}, number=number)
        for name in _counting(folder, file, order, count, limits, until, records):
            if time.monotonic() >= until:
                break
            outcome = device.child().ask(name)
            found.outcomes[name] = outcome
            progress(outcome)
    return found


def _counting(
    folder: Path, file: str, order: list[str], count: int, limits: Limits, until: float, records: Path
) -> Iterator[str]:
    """Yield ``count`` names of those in ``order`` that pass on the CPU."""
    known = record.read(file, CPU.device, records)
    wanted = count
    try:
        with _Side(folder, file, CPU, limits) as cpu:
            for name in order[: count * TRIED_FOR_EACH]:
                if name not in known.outcomes:
                    if time.monotonic() >= until:
                        return
                    outcome = cpu.child().ask(name)
                    known.tests = max(known.tests, len(cpu.child().tests) if not cpu.child().dead else 0)
                    known.outcomes[name] = Outcome(name, outcome.status, outcome.reason)
                if known.outcomes[name].status != PASSED:
                    continue
                yield name
                wanted -= 1
                if not wanted:
                    return
    except LoadError as error:
        known.unloaded = str(error)
    finally:
        record.write(known, CPU.device, records)
