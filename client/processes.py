"""Runs another program to its end, wholly: whatever it started ends with it, and it ends with us.

A compiler may start programs of its own, takes tens of gigabytes, and outlives a caller that is killed, because
nothing tells it. So it is started by a small supervisor (this file, run as a script): that one kills what is left of
the program's process group, and when its own parent is gone it kills the group and removes the program's directory. The
kernel's parent-death signal would not do: it comes when the *thread* ends that started the child.

Only the standard library, and nothing of this project: the supervisor starts in some 15 ms.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WATCH_SECONDS = 0.5
_DEATH_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Completed:
    """How a program ended: ``returncode`` as in `subprocess` (negative for a signal), or None if its time was up.

    ``seconds`` is wall time. ``peak_memory_bytes`` is the largest resident peak of any one process among the program
    and those it waited for.
    """

    returncode: int | None
    seconds: float
    peak_memory_bytes: int | None


def run(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    directory: Path,
    log: Path,
    seconds: float,
    errors: Path | None = None,
    work: Path | None = None,
) -> Completed:
    """Run ``command`` in ``directory``, both output streams appended to ``log``, for at most ``seconds``.

    ``errors`` is a log of its own for the error stream; ``work`` is another working directory, never removed.
    The streams go to a file, so nobody has to drain them, and a grandchild that keeps them open holds nobody up. The
    program runs in a session of its own, without a terminal. Its whole process group is dead on return, also on return
    by an exception such as KeyboardInterrupt. ``directory`` is private to this run: it is removed if this process dies
    meanwhile, else left to the caller. Raises OSError if the program cannot be started.
    """
    start = time.monotonic()
    report, write_end = os.pipe()
    with open(report, "rb") as reader:  # noqa: PTH123 - of a descriptor
        try:
            with log.open("ab") as output, (errors or log).open("ab") as error_output:
                supervisor = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, str(write_end), str(os.getpid()), str(directory), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=error_output,
                    cwd=directory if work is None else work,
                    env=dict(environ),
                    pass_fds=[write_end],
                    start_new_session=True,
                )
        finally:
            os.close(write_end)
        try:
            supervisor.wait(seconds)
        except subprocess.TimeoutExpired:
            _kill(supervisor)
            return Completed(None, time.monotonic() - start, None)
        except BaseException:
            _kill(supervisor)
            raise
        said = reader.read()
    took = time.monotonic() - start
    if not said:  # somebody killed the supervisor; the program's group may live on
        _kill_group(supervisor.pid)
        return Completed(supervisor.returncode, took, None)
    answer: dict[str, Any] = json.loads(said)
    if "errno" in answer:
        raise OSError(answer["errno"], os.strerror(answer["errno"]), command[0])
    return Completed(answer["returncode"], took, answer["peak_memory_bytes"])


def _kill(supervisor: subprocess.Popen[bytes]) -> None:
    """Kill the supervisor and its process group, whose id it holds as long as it is not reaped."""
    _kill_group(supervisor.pid)
    supervisor.wait()


def _members(group: int) -> Iterator[int]:
    """Give the ids of the living processes in a process group, except our own."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # After the program's name, which may hold anything: state, parent, process group.
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its_group) == group and state != "Z":
            yield int(entry.name)


def _kill_group(group: int) -> None:
    """Kill a process group except ourselves, and wait until it is dead: a process may just have started another.

    One that hangs in the kernel (a network file system that is gone) is waited for `_DEATH_SECONDS`, then left.
    """
    deadline = time.monotonic() + _DEATH_SECONDS
    while (members := list(_members(group))) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _supervise(report: int, parent: int, directory: str, command: list[str]) -> int:
    """Run ``command`` and report how it ended, or clean up once ``parent`` is gone."""
    os.set_inheritable(report, False)  # noqa: FBT003 - its signature
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        os.write(report, json.dumps({"errno": error.errno}).encode())
        return 1
    ended = os.pidfd_open(program.pid)
    while not select.select([ended], [], [], _WATCH_SECONDS)[0]:
        if os.getppid() != parent:
            _kill_group(os.getpgrp())
            shutil.rmtree(directory, ignore_errors=True)
            return 1
    _, status, usage = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    _kill_group(os.getpgrp())
    answer = {"returncode": program.returncode, "peak_memory_bytes": usage.ru_maxrss * 1024}
    os.write(report, json.dumps(answer).encode())
    return 0


if __name__ == "__main__":
    sys.exit(_supervise(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
