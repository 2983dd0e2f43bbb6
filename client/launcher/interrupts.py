"""Signals that end a job, as an exception: everything is cleaned up before the process dies of the signal after all."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(BaseException):
    """One of `ENDING` came; ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def raise_on_signals() -> None:
    """From now on the first of `ENDING` raises `Interrupted` in the main thread; the others wait for its end.

    What the caller ignores (``nohup``) stays ignored.
    """

    def interrupt(number: int, _: FrameType | None) -> None:
        for one in ENDING:
            if signal.getsignal(one) is not signal.SIG_IGN:
                signal.signal(one, signal.SIG_IGN)
        raise Interrupted(number)

    for one in ENDING:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, interrupt)


def die_of(number: int) -> NoReturn:
    """End this process by a signal, as its caller expects. No core is left: it would not be the compiler's."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # a signal whose default is to be ignored
