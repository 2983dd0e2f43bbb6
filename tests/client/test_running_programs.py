from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from client.processes import run
from tests.fakes.waiting import is_running, wait_until

if TYPE_CHECKING:
    from pathlib import Path

# A program that starts another and says both ids.
FAMILY = (
    "import os, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
    "open('ids.new', 'w').write(f'{os.getpid()} {child.pid}')\n"
    "os.rename('ids.new', sys.argv[1])\n"
    "time.sleep(float(sys.argv[2]))\n"
)


def python(tmp_path: Path, program: str, *arguments: str, seconds: float = 60):
    command = [sys.executable, "-c", program, *arguments]
    return run(command, environ=os.environ, directory=tmp_path, log=tmp_path / "log", seconds=seconds)


def test_exit_status_output_and_peak_memory_come_back(tmp_path: Path) -> None:
    program = "import sys; b = bytearray(64 << 20); print('out'); print('err', file=sys.stderr); sys.exit(70)"
    ended = python(tmp_path, program)
    assert ended.returncode == 70
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]
    assert ended.peak_memory_bytes is not None
    assert 64 << 20 < ended.peak_memory_bytes < 256 << 20


def test_death_by_a_signal_is_told_from_an_exit_status(tmp_path: Path) -> None:
    assert python(tmp_path, "import os; os.kill(os.getpid(), 11)").returncode == -signal.SIGSEGV


def test_output_of_any_size_blocks_nobody(tmp_path: Path) -> None:
    ended = python(tmp_path, "import os\nfor i in range(64): os.write(2, b'e' * 65536); os.write(1, b'o' * 65536)")
    assert ended.returncode == 0
    assert (tmp_path / "log").stat().st_size == 128 * 65536


def test_a_program_that_cannot_be_started_is_an_os_error(tmp_path: Path) -> None:
    for command, kind in ((["/no/such/program"], FileNotFoundError), ([str(tmp_path)], PermissionError)):
        with pytest.raises(kind):
            run(command, environ=os.environ, directory=tmp_path, log=tmp_path / "log", seconds=60)


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    assert python(tmp_path, FAMILY, str(tmp_path / "ids"), "0").returncode == 0
    assert not any(is_running(int(pid)) for pid in (tmp_path / "ids").read_text().split())


def test_a_program_over_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    assert python(tmp_path, FAMILY, str(tmp_path / "ids"), "300", seconds=3).returncode is None
    assert not any(is_running(int(pid)) for pid in (tmp_path / "ids").read_text().split())


def test_an_interrupt_kills_the_program_with_its_children(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until((tmp_path / "ids").exists, "the program runs")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        python(tmp_path, FAMILY, str(tmp_path / "ids"), "300")
    thread.join()
    assert not any(is_running(int(pid)) for pid in (tmp_path / "ids").read_text().split())


def test_a_caller_that_is_killed_leaves_neither_program_nor_directory(tmp_path: Path) -> None:
    private, ids = tmp_path / "private", tmp_path / "ids"
    private.mkdir()
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom client.processes import run\n"
        "run([sys.executable, '-c', sys.argv[1], sys.argv[2], '300'], environ=os.environ, "
        "directory=Path(sys.argv[3]), log=Path(sys.argv[3], 'log'), seconds=300)"
    )
    caller = subprocess.Popen([sys.executable, "-c", program, FAMILY, str(ids), str(private)])
    try:
        wait_until(ids.exists, "the program runs")
        pids = [int(pid) for pid in ids.read_text().split()]
        assert all(is_running(pid) for pid in pids)
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: not any(is_running(pid) for pid in pids), "the program ends with its caller")
    wait_until(lambda: not private.exists(), "its directory goes")
