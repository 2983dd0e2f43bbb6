"""How many compilers run on a node at once, over all its processes.

A slot is the kernel's lock on one of ``<root>/v1/.slots/0``, ``1`` …: it comes free when its process ends, however
that ends. Processes that ask for different numbers of slots each keep to their own.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from client.node.lock import FIRST_POLL, LONGEST_POLL, held_descriptors
from client.node.permissions import UntrustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.node.tree import Tree

SLOTS = ".slots"  # no project's name begins with a dot


class CompileSlots:
    """``count`` slots in a node tier. Safe to use from several threads and processes."""

    def __init__(
        self,
        tree: Tree,
        count: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tree = tree
        self._files = tree.files
        self._count = count
        self._clock = clock
        self._sleep = sleep

    @contextmanager
    def take(self, *, limit: float) -> Iterator[bool]:
        """Wait up to ``limit`` seconds for a slot, and give it back at the end.

        Gives False where there are no locks or the limit is reached: the compiler is then started all the same.
        """
        descriptor = self._wait(limit)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                held_descriptors.discard(descriptor)
                with suppress(OSError):
                    self._files.unlock(descriptor)
                with suppress(OSError):
                    self._files.close(descriptor)

    def _wait(self, limit: float) -> int | None:
        deadline = self._clock() + limit
        pause = FIRST_POLL
        try:
            while True:
                descriptor = self._try()
                if descriptor is not None or self._clock() >= deadline:
                    return descriptor
                self._sleep(pause)
                pause = min(pause * 1.5, LONGEST_POLL)
        except (OSError, UntrustedError):
            return None

    def _try(self) -> int | None:
        """Return the descriptor of a slot that was free, or None."""
        with self._tree.directory(SLOTS, make=True) as (directory, trust):
            for number in range(self._count):
                descriptor = self._tree.open_lock_file(str(number), directory, trust)
                try:
                    if self._files.lock(descriptor):
                        held_descriptors.add(descriptor)
                        return descriptor
                except BaseException:
                    self._files.close(descriptor)
                    raise
                self._files.close(descriptor)
        return None
