"""The parent's hold on a child process that runs tests of one file."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.sweep.runner import ROOT
from tests.upstream.outcome import CRASH, HANG, LIMIT, Limits, Outcome
from tests.upstream.reasons import without_places

if TYPE_CHECKING:
    from tests.upstream.files import Side


BUSY = 10  # ticks of processor time in a second, of a hundred: what does less than that hangs


def _ticks(group: int) -> int:
    """Return the processor time that the processes of ``group`` have used, in ticks of 10 ms; 0 where nothing tells."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                total += int(fields[11]) + int(fields[12])
    return total


class LoadError(Exception):
    """A file could not be imported; says why in one line."""


class Child:
    """A worker for one file and device. Use it in a ``with`` statement; `ask` it until it is dead."""

    def __init__(self, folder: Path, file: str, side: Side, work: Path, limits: Limits) -> None:
        self.limits = limits
        self.log = work / "errors.txt"
        self.dead = False
        home = {f"XDG_{kind}_HOME": str(work) for kind in ("CONFIG", "CACHE", "DATA")}
        environment = {
            **os.environ,
            **home,
            "NEURON_CACHE_NODE_DIR": os.environ.get("NEURON_CACHE_NODE_DIR", str(work / "node")),
            "NEURON_CACHE_URL": "",
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TMPDIR": str(work),
            "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        }
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.upstream.worker", str(folder), file, side.device, str(limits.test)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=work,  # some tests write where they are
                env=environment,
                start_new_session=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.tests: dict[str, str] = self._loaded(file)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _loaded(self, file: str) -> dict[str, str]:
        try:
            line = self._lines.get(timeout=self.limits.loading)
        except queue.Empty:
            raise LoadError(f"{file} was not imported within {self.limits.loading:g} s") from None
        if line is None:
            lines = self.log.read_text(errors="replace").strip().splitlines()
            raise LoadError(
                without_places(lines[-1])[:200] if lines else f"the process died with {self.process.wait()}"
            )
        return dict(json.loads(line)["tests"])

    def ask(self, name: str) -> Outcome:
        """Let the child run a test; if it does not live to tell, it is `dead`."""
        assert self.process.stdin is not None
        line = None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{name}\n")
            self.process.stdin.flush()
            try:
                line = self._lines.get(timeout=self.limits.test + self.limits.grace / 2)
            except queue.Empty:
                before = _ticks(self.process.pid)
                try:
                    line = self._lines.get(timeout=self.limits.grace / 2)
                except queue.Empty:
                    self.dead = True
                    # What waits for autograd's thread, or computes outside Python, hears no signal.
                    status = LIMIT if _ticks(self.process.pid) - before > BUSY * self.limits.grace / 2 else HANG
                    return Outcome(name, status, f"no answer within {self.limits.test + self.limits.grace:g} s")
        if line is None:
            self.dead = True
            code = self.process.wait()
            return Outcome(name, CRASH, signal.Signals(-code).name if code < 0 else f"the process ended with {code}")
        message: dict[str, Any] = json.loads(line)
        return Outcome(**message)

    def end(self) -> None:
        """Kill the child and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
