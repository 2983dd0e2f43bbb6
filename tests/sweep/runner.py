"""Run a column of the sweep in child processes: one that dies or hangs costs one operator."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.sweep.outcome import CRASH, Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180.0
WORKER = (sys.executable, "-m", "tests.sweep.worker")
BATCH = 60


class _Child:
    """A worker, and the lines it says; None is its end."""

    def __init__(self, command: Sequence[str], task: Task, names: Sequence[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [*command, json.dumps(asdict(task))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already: its exit code says how
            self.process.stdin.write("".join(f"{name}\n" for name in names))
            self.process.stdin.close()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def end(self) -> int:
        """Kill what is left of it and its compilers; return the exit code it had, negative for a signal."""
        try:
            code = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def run(
    task: Task,
    names: Sequence[str],
    *,
    jobs: int = 1,
    seconds: float = SECONDS,
    environment: dict[str, str] | None = None,
    command: Sequence[str] = WORKER,
    kind: type[Outcome] = Outcome,
    batch_size: int = BATCH,
    progress: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Return the outcome of each of ``names``; ``seconds`` is how long one operator may take.

    ``kind`` is what the answers of ``command`` are read as; one process answers for ``batch_size`` names.
    """
    batches: queue.Queue[list[str]] = queue.Queue()
    size = max(1, min(batch_size, -(-len(names) // jobs)))
    for start in range(0, len(names), size):
        batches.put(list(names[start : start + size]))
    outcomes: dict[str, Outcome] = {}
    surroundings = {**os.environ, **(environment or {})}

    def work() -> None:
        while True:
            try:
                batch = batches.get_nowait()
            except queue.Empty:
                return
            while batch:
                for outcome in _some(command, task, batch, seconds, surroundings, kind):
                    outcomes[outcome.operator] = outcome
                    progress(outcome)
                batch = [name for name in batch if name not in outcomes]

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outcomes[name] for name in names]


def _some(
    command: Sequence[str],
    task: Task,
    names: Sequence[str],
    seconds: float,
    environment: dict[str, str],
    kind: type[Outcome],
) -> Iterator[Outcome]:
    """Run one child as far as it gets; at least one operator has an outcome then."""
    child = _Child(command, task, names, environment)
    found: list[Outcome] = []
    current = names[0]
    late = False
    while True:
        try:
            line = child.lines.get(timeout=seconds)
        except queue.Empty:
            late = True
            break
        if line is None:
            break
        message: dict[str, Any] = json.loads(line)
        if "begin" in message:
            current = message["begin"]
        else:
            found.append(kind(**message))
            yield found[-1]
            current = ""
    if late:
        child.process.kill()
    code = child.end()
    gave_way = code == 0 and found and not current and not late
    if len(found) < len(names) and not gave_way:
        stuck = current or names[len(found)]
        died = f"the process died of {signal.Signals(-code).name}" if code < 0 else f"the process ended with {code}"
        yield kind(stuck, CRASH, f"no answer within {seconds:g} s" if late else died)
