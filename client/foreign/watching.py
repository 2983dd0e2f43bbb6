"""Keeps a directory and the shared cache in step for as long as a job runs: the sidecar's loop."""

from __future__ import annotations

import random
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from client.errors import ConfigurationError, Denied, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERVAL_SECONDS = 30.0
MOST_SECONDS = 600.0
LAST_SECONDS = 20.0
"""What the last pass may take after we were told to end: less than the 30 s that Kubernetes waits."""


class Ending:
    """Whether we were told to end. ``ended`` is set at the first signal, ``now`` at the second or `LAST_SECONDS` on."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.now = threading.Event()
        self._timer: threading.Timer | None = None

    def tell(self) -> None:
        """End."""
        if self.ended.is_set():
            self.now.set()
            return
        self.ended.set()
        self._timer = threading.Timer(LAST_SECONDS, self.now.set)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def ending_on_signals() -> Iterator[Ending]:
    """Give an `Ending` that SIGTERM and SIGINT tell, in the main thread."""
    ending = Ending()
    before = {number: signal.signal(number, lambda *_: ending.tell()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        ending.close()


def watch(
    once: Callable[[bool], None],
    ending: Ending,
    say: Callable[[str], None],
    *,
    interval: float = INTERVAL_SECONDS,
    uniform: Callable[[float, float], float] = random.uniform,
) -> None:
    """Call ``once`` every ``interval`` seconds until told to end, and then, with True, a last time.

    A shared cache or directory that cannot be used is waited for, twice as long each time up to `MOST_SECONDS`, and
    told once; a missing right is raised, because waiting does not give it.
    """
    pause = interval
    failing = False
    while True:
        last = ending.ended.is_set()
        try:
            once(last)
        except Denied:
            raise
        except (TransportError, ConfigurationError, OSError) as error:
            if not failing:
                say(f"{error}; trying again until it works")
            failing = True
            pause = min(pause * 2, MOST_SECONDS)
        else:
            if failing:
                say("it works again")
            failing = False
            pause = interval
        if last:
            return
        ending.ended.wait(pause * uniform(0.8, 1.2))
