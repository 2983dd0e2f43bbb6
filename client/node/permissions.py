"""Whom the node tier believes: owners and permission bits of what was opened, never of a path.

A program out of the tier is code that the job runs. So it must come from the own user or root, or, where
``NEURON_CACHE_NODE_SHARED=group`` asks for it, from a member of the tier's group. Where signatures are required it may
come from anybody: then nothing is believed but a signature, and whoever can write the tier can make entries useless.
"""

from __future__ import annotations

import os
import stat


class UntrustedError(Exception):
    """Somebody else could have written this; the message says what it is, who owns it and what to do."""


class Trust:
    """The rule for one tier. ``group`` is the sharing group's id, or None for a private tier.

    ``open_mode``: permission bits of a tier that anybody may write to, because signatures are required; else None.
    """

    __slots__ = ("group", "open_mode", "uid")  # no dataclass: a hit of the launcher has no time to import those

    def __init__(self, uid: int, group: int | None = None, open_mode: int | None = None) -> None:
        self.uid = uid
        self.group = group
        self.open_mode = open_mode

    @classmethod
    def of_tier(cls, root: os.stat_result, *, shared: bool, path: str, signed: bool = False) -> Trust:
        """Return the rule for the tier whose opened root has this status; raises `UntrustedError`.

        ``signed``: signatures are required of what is read from it, so that it may be anybody's.
        """
        if signed and root.st_mode & stat.S_IWOTH:
            return cls(os.geteuid(), open_mode=stat.S_IMODE(root.st_mode))
        if not shared:
            trust = cls(os.geteuid())
        elif root.st_gid in {os.getegid(), *os.getgroups()}:
            trust = cls(os.geteuid(), root.st_gid)
        else:
            raise UntrustedError(
                f"{path} belongs to group {root.st_gid}, of which this process is no member;"
                " set NEURON_CACHE_NODE_DIR to a directory of a common group"
            )
        trust.check(root, path)
        return trust

    @property
    def directory_mode(self) -> int:
        """Permission bits of directories that are made here."""
        if self.open_mode is not None:
            return self.open_mode
        return 0o700 if self.group is None else 0o2770

    @property
    def file_mode(self) -> int:
        """Permission bits of files that are made here."""
        if self.open_mode is not None:
            return 0o666
        return 0o600 if self.group is None else 0o660

    @property
    def widens(self) -> bool:
        """Whether others are given what the process's umask may have taken."""
        return self.group is not None or self.open_mode is not None

    def check(self, status: os.stat_result, what: str) -> None:
        """Raise `UntrustedError` unless ``status`` is that of a directory or file which only trusted users can write.

        A private tier's directory may be group-writable: who adds a file to it owns that file, and is found by it.
        """
        mode = status.st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise UntrustedError(f"{what} is neither a directory nor a regular file; remove it")
        if self.open_mode is not None:
            return
        if mode & stat.S_IWOTH:
            raise UntrustedError(
                f"{what} can be written by every user; use `chmod o-w`, or another directory as NEURON_CACHE_NODE_DIR"
            )
        if self.group is not None:
            if status.st_gid != self.group:
                raise UntrustedError(f"{what} belongs to group {status.st_gid}, not to the tier's ({self.group})")
            return
        if status.st_uid not in (self.uid, 0):
            raise UntrustedError(
                f"{what} belongs to user {status.st_uid}, not to this process's ({self.uid});"
                " use a NEURON_CACHE_NODE_DIR of your own, or NEURON_CACHE_NODE_SHARED=group"
            )
        if mode & stat.S_IWGRP and stat.S_ISREG(mode):
            raise UntrustedError(
                f"{what} can be written by its group; use `chmod g-w`, or NEURON_CACHE_NODE_SHARED=group"
            )
