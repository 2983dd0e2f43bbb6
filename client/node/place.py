"""Where the node tier of this process lies, found out once: whether its folder answers and can be reached."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from client.node.files import Files
from client.node.watched import WatchedFiles
from client.stalls import StalledError, place_of

if TYPE_CHECKING:
    from pathlib import Path

ADVICE = "set NEURON_CACHE_NODE_DIR to a directory on a disk of this machine that this user can write"


class Site(NamedTuple):
    """A node tier's folder, the calls to use there, and a sentence if it is not the one that was asked for.

    ``usable`` is False if there is no folder to use at all.
    """

    root: Path
    files: Files
    problem: str = ""
    usable: bool = True


def find_site(root: Path, fallback: Path | None = None, files: Files | None = None) -> Site:
    """Return where a tier that was asked for at ``root`` lies: there, or in ``fallback`` if this user cannot get there.

    Nothing is made. A folder that does not answer is given up after `client.stalls.LIMIT` seconds.
    """
    wanted = files or Files()
    used, why = _look(root, wanted)
    if not why:
        return Site(root, used)
    shown = f"the node tier {root} (NEURON_CACHE_NODE_DIR) cannot be used: {why}"
    if fallback is not None and fallback != root:
        instead, reason = _look(fallback, files or Files())
        if not reason:
            return Site(fallback, instead, f"{shown}; {fallback} is used in its place: {ADVICE}")
    return Site(root, used, f"{shown}; there is none: {ADVICE}", usable=False)


def open_files(root: Path) -> Files:
    """Return the calls for a tier at ``root``; if it does not answer, each raises `client.stalls.StalledError`."""
    return _look(root, Files())[0]


def _look(root: Path, files: Files) -> tuple[Files, str]:
    """Return the calls to use for ``root``, watched where they may never return; and what stands in the way."""
    try:
        if not files.may_stall(str(root)):
            return files, obstacle(root)
    except Exception:  # noqa: BLE001 - who uses the tier is told what is wrong
        return files, ""
    watched = WatchedFiles(files, place_of(str(root)))
    try:
        return watched, watched.place.call(lambda: obstacle(root))
    except StalledError as error:
        return watched, f"{error.strerror}, as if a network file system were gone"


def obstacle(path: Path) -> str:
    """Return what keeps this user from a directory that is there, or from making it; "" if nothing does."""
    try:
        path.stat()
    except FileNotFoundError:
        above = next(folder for folder in path.parents if os.path.lexists(folder))
        if not above.is_dir():
            return f"{above} is no directory"
        return "" if _may(above, os.W_OK | os.X_OK) else f"it cannot be made in {_whose(above)}"
    except PermissionError:
        closed = next((folder for folder in reversed(path.parents) if not _may(folder, os.X_OK)), path)
        return f"user {os.geteuid()} may not enter {_whose(closed)}"
    except OSError as error:
        return error.strerror or str(error)
    return "" if _may(path, os.R_OK | os.X_OK) else f"user {os.geteuid()} may not enter {_whose(path)}"


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _whose(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return f"{path} (owner {status.st_uid}, mode {status.st_mode & 0o7777:04o})"
