"""What the launcher itself says, and the compiler's own output, to callers that drain their pipes one after the other.

A caller may read standard output to its end before it reads standard error (or has pipes of 4 KiB): whoever then writes
more to standard error than the pipe holds waits for ever, and so does the caller. So as long as standard output is
open, no more than `MAX_NOTICES` bytes of ours go to standard error; the compiler's own error output goes there once
standard output is written and closed.
"""

from __future__ import annotations

import logging
import os

from client.launcher.passing import PREFIX

MAX_NOTICES = 2048


class Notices(logging.Handler):
    """Passes warnings of the cache on to standard error, `MAX_NOTICES` bytes in all."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._left = MAX_NOTICES

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or nothing once the limit is reached."""
        text = record.getMessage().removeprefix(PREFIX)
        line = f"{PREFIX}{text}\n".encode("utf-8", "backslashreplace")
        if len(line) > self._left:
            return
        self._left -= len(line)
        write(2, line)


def hold() -> None:
    """Open whichever of the three standard streams the caller left closed, lest another file get its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def replay(output: bytes, errors: bytes) -> None:
    """Hand on a compiler's two streams, and end our standard output between them."""
    write(1, output)
    close_output()
    write(2, errors)


def close_output() -> None:
    """End standard output: a caller that reads it to its end comes to standard error then."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def write(descriptor: int, data: bytes) -> None:
    """Write all of ``data``; a reader that is gone is no error of ours."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        return
