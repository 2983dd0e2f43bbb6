"""Puts a NEFF where the caller wants it: whole, by rename, readable as the caller's umask says."""

from __future__ import annotations

import os
import stat

from client.launcher.passing import NotShared

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def check(output: str) -> None:
    """Raise `NotShared` unless ``output`` is, or can become, a regular file."""
    path = os.path.realpath(output)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - pathlib costs 3 ms
            raise NotShared("an output that is no regular file")
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(path)):  # noqa: PTH112, PTH120
            raise NotShared("an output in a folder that is not there") from None
    except OSError as error:
        raise NotShared("an output that cannot be looked at") from error


def write(output: str, data: bytes) -> None:
    """Write the verified bytes beside ``output`` and rename; a symbolic link stays one.

    Raises OSError, and then nothing is left.
    """
    path = os.path.realpath(output)
    # no part of it is the caller's name, which may be as long as the file system allows
    temporary = os.path.join(os.path.dirname(path), f".neff-cache-{os.getpid()}-{os.urandom(6).hex()}")  # noqa: PTH118, PTH120
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.rename(temporary, path)  # noqa: PTH104
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108
        raise


def write_log(logfile: str | None, entry: Mapping[str, Any], source: str) -> None:
    """Leave one line where the caller expects the compiler's log: no compiler ran, and where the program is from."""
    if logfile is None:
        return
    producer = entry["producer"]
    line = (
        f"neff-cache: {entry['kind']}/{entry['key']} came from {source}: no compiler ran. It was compiled in"
        f" {entry['compile_seconds']:.1f} s on {producer['host']} at {entry['created']};"
        f" `neff-cache show {entry['key'][:12]}` tells more\n"
    )
    try:
        with open(logfile, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(line)
    except OSError:  # the program is there, and that is what was asked for
        return
