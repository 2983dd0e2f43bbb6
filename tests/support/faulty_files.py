"""File systems as jobs meet them: full, read-only, forgetful, late, and lying about their locks."""

from __future__ import annotations

import errno
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from client.node.files import Files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CALLS = tuple(name for name in vars(Files) if not name.startswith("_"))
"""Every call that the node tier makes on a file system."""
HARMLESS = ("close",)
"""What cannot fail in a way that matters: the descriptor is gone in any case."""


class FaultyFiles(Files):
    """The real file system, but some ``calls`` fail with ``code``: those numbered ``when`` says (0 is the first).

    ``failed`` counts the failures by call.
    """

    def __init__(self, calls: Iterable[str], code: int, when: Callable[[int], bool] = lambda number: True) -> None:
        self.failed: Counter[str] = Counter()
        self._made: Counter[str] = Counter()
        for name in calls:
            setattr(self, name, self._failing(name, code, when))

    def _failing(self, name: str, code: int, when: Callable[[int], bool]) -> Callable[..., Any]:
        real = getattr(super(), name)

        def call(*arguments: Any, **options: Any) -> Any:
            number = self._made[name]
            self._made[name] += 1
            if not when(number):
                return real(*arguments, **options)
            self.failed[name] += 1
            raise OSError(code, os.strerror(code))

        return call


class TornFiles(Files):
    """A disk that is full in the middle of each file: half of it stands there."""

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class ForgetfulFiles(Files):
    """A file system that reports writes as done and keeps only half of each: what a crash leaves of unsynced pages."""

    def write(self, descriptor: int, data: bytes) -> None:
        super().write(descriptor, data[: len(data) // 2])


class LateFiles(Files):
    """A network file system that shows a rename late: each new name is absent for the first ``looks`` at it."""

    def __init__(self, looks: int = 3) -> None:
        self._looks = looks
        self._hidden: Counter[str] = Counter()

    def rename(self, old: str, new: str, parent: int, new_parent: int | None = None) -> None:
        super().rename(old, new, parent, new_parent)
        self._hidden[new] = self._looks

    def _look(self, name: str | os.PathLike[str]) -> None:
        if self._hidden[str(name)] > 0:
            self._hidden[str(name)] -= 1
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(name))

    def open_directory(self, name: str | os.PathLike[str], parent: int | None = None) -> int:
        self._look(name)
        return super().open_directory(name, parent)

    def open_file(self, name: str, parent: int) -> int:
        self._look(name)
        return super().open_file(name, parent)

    def status_of(self, name: str, parent: int) -> os.stat_result:
        self._look(name)
        return super().status_of(name, parent)


class LostAnswers(Files):
    """A network file system that does a rename, loses the answer, tries again and reports that nothing is there."""

    def rename(self, old: str, new: str, parent: int, new_parent: int | None = None) -> None:
        super().rename(old, new, parent, new_parent)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)


class LyingLocks(Files):
    """A file system that grants every lock to everybody, as an NFS mount without a lock daemon may."""

    def lock(self, descriptor: int) -> bool:
        return True

    def unlock(self, descriptor: int) -> None:
        return


class StuckLocks(Files):
    """A file system on which every lock belongs to somebody else for ever."""

    def lock(self, descriptor: int) -> bool:
        return False
