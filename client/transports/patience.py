"""How long the caller of a transport is willing to wait: a job's patience runs out before the limits of a request do.

The caller says it around a request, and the transport asks for it where it waits. It travels beside the arguments (a
context variable), because only what waits on a socket has a use for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from client.transports.timed_socket import PROGRESS, Pace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.transports.limits import Limits
    from client.wire import Output

LEAST_FETCH = 5.0
"""Seconds that a fetch may take however quick the compiler was: as long as a server may take to begin its answer."""
MOST_FETCH, SLOWEST = 30.0, 4 << 20
"""Seconds, and bytes in a second, that bound a fetch however long the compile is said to have taken."""
WINDOW = 2.0
"""Seconds over which the speed of a fetch is measured."""


@dataclass(slots=True)
class Watch:
    """What a caller sees of a request under way: the bytes that have arrived, and the pace that is expected of it.

    ``waited`` is for how many seconds it has waited for answers to begin, where it takes several.
    """

    moved: int = 0
    waited: float = 0.0
    pace: Pace | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """``quiet``: seconds without progress that can still be afforded. ``can_compile``: a slow fetch is not needed.

    ``watch`` is for transports that cannot cut their waits themselves: they note what arrives, and are watched.
    """

    quiet: float = float("inf")
    can_compile: bool = False
    watch: Watch = field(default_factory=Watch)

    @property
    def left(self) -> float:
        """Seconds that may still go by before an answer begins."""
        return max(self.quiet - self.watch.waited, 0.0)

    def pace(self, limits: Limits, output: Output, compile_seconds: float) -> Pace:
        """Return how fast an output has to arrive: where it can be compiled, faster than it was compiled.

        A fetch that would take longer at the speed of the last `WINDOW` seconds is given up then, not at its end.
        The caller sees the pace, too.
        """
        self.watch.pace = self._pace(limits, output, compile_seconds)
        return self.watch.pace

    def is_too_slow(self, pace: Pace, limits: Limits) -> bool:
        """Return whether what has not kept ``pace`` was slower than a compile, and not just standing still."""
        stalled = min(limits.stall, self.left)
        return self.can_compile and (pace.seconds < stalled or pace.whole <= stalled)

    def arrived(self, piece: memoryview) -> None:
        """Note that bytes have arrived."""
        self.watch.moved += len(piece)

    def _pace(self, limits: Limits, output: Output, compile_seconds: float) -> Pace:
        stall = min(limits.stall, self.left)
        # the time of the compile and the size are the server's word, and both may be lies: neither has it all to itself
        most = output.stored_size / SLOWEST
        if not self.can_compile:
            return Pace(PROGRESS, stall, max(most, limits.upload))
        seconds = max(min(compile_seconds, MOST_FETCH + most), LEAST_FETCH)
        speed = max(output.stored_size, 1) / seconds
        window = max(PROGRESS, int(speed * WINDOW))
        return Pace(window, min(stall, max(window / speed, WINDOW)), seconds)


_ENDLESS = Patience()
_patience: ContextVar[Patience] = ContextVar("neff_cache_patience", default=_ENDLESS)


def current() -> Patience:
    """Return the patience of the caller; without a word it has no end."""
    return _patience.get()


@contextmanager
def patient(patience: Patience) -> Iterator[None]:
    """Let the requests in the ``with`` block be made with ``patience``."""
    before = _patience.set(patience)
    try:
        yield
    finally:
        _patience.reset(before)
