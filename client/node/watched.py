"""The node tier's calls where they may never return: each on a thread that is given up when it does not move."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from client.node.files import Files

if TYPE_CHECKING:
    from client.stalls import Place

PIECE = 16 << 20
"""Bytes of one read or write, after which it is known that the file system moves."""
_OPENING = frozenset({"open_directory", "open_file", "create_file", "open_lock_file", "open_appending"})


class WatchedFiles(Files):
    """``files`` by way of ``place``: what does not return in time raises `client.stalls.StalledError`.

    A call that comes back later changes nothing any more: what it opened is closed.
    """

    def __init__(self, files: Files, place: Place) -> None:
        self.files = files
        self.place = place
        files.piece = PIECE

    def close(self, descriptor: int) -> None:
        """Close a descriptor; of a place that is given up, without waiting for it."""
        if self.place.is_given_up:
            self.place.leave(partial(self.files.close, descriptor))
        else:
            self._call("close", descriptor)

    def _call(self, name: str, *arguments: Any) -> Any:
        late = _close_late if name in _OPENING else _nothing
        work = partial(getattr(self.files, name), *arguments)
        return self.place.call(work, late=late, moved=lambda: self.files.moved)


def _nothing(_result: object) -> None:
    """Leave a late result alone."""


def _close_late(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _watch(name: str) -> None:
    def method(self: WatchedFiles, *arguments: Any) -> Any:
        return self._call(name, *arguments)

    method.__doc__ = getattr(Files, name).__doc__
    setattr(WatchedFiles, name, method)


for _name, _value in vars(Files).items():
    if callable(_value) and not _name.startswith("_") and _name not in ("close", "may_stall"):
        _watch(_name)
