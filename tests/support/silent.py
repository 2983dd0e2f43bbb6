"""A mounted file system whose every call never returns, as when a network file system's server is gone.

It is the kernel's own FUSE with a daemon that never reads a request, so that callers wait in the kernel for ever. Run
as a program it mounts one, says so, and keeps it until its standard input ends: no test process holds the mount.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAZY = 2  # MNT_DETACH


def _serve(folder: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"silent", folder.encode(), b"fuse.silent", 0, options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    sys.stdin.read()
    libc.umount2(folder.encode(), _LAZY)
    os.close(device)  # which ends all calls that still wait


@contextmanager
def silent_file_system(folder: Path) -> Iterator[Path]:
    """Mount one at ``folder``, which is made; skips the test where that cannot be done."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(Path(__file__)), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as serving:
        assert serving.stdin is not None
        assert serving.stdout is not None
        assert serving.stderr is not None
        try:
            if serving.stdout.readline() != b"mounted\n":
                pytest.skip(f"nothing can be mounted here: {serving.stderr.read().decode().strip()[-200:]}")
            yield folder
        finally:
            serving.stdin.close()
            serving.wait()


if __name__ == "__main__":
    _serve(sys.argv[1])
