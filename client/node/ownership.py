"""What in a node tier is ours: without proof of that nothing is written there, and nothing is ever deleted.

Proof is a marker, ``<root>/v1/CACHEDIR.TAG``, that was written when the folder was made (tools that make backups leave
such folders out). A tier of a version that knew no marker is taken over if all that lies in it is of our layout, down
to the names of entries. Below the marker only names that we could have made are touched: a project, a kind, two digits
that begin a key, the key, and temporary names of ours, each matched in full.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, NamedTuple

from client.names import Kind, is_digest, is_project
from client.node.files import ABSENT
from client.node.permissions import UntrustedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.node.files import Files

MARKER = "CACHEDIR.TAG"
_BEGINS = b"Signature: 8a477f597d28d172789f06886806bc55\n# This is a node tier of neff-cache"
"""The first line is that of https://bford.info/cachedir/, the second is ours: other caches have such files, too."""
MARK = _BEGINS + b": it deletes what it made below this folder, the least recently used first.\n"

LOCKS = "locks"
TEMPORARY = "tmp-"
BAD = "bad-"
ENTRY_FILES = frozenset({"entry.json", "model.neff"})
"""All that lies in an entry's folder."""

_UNIQUE = "[0-9]+-[0-9a-f]{16}"  # client.node.tree.unique_name
_PREFIX = re.compile("[0-9a-f]{2}")
_TEMPORARY = re.compile(f"{TEMPORARY}{_UNIQUE}")
_BAD = re.compile(f"{BAD}[0-9a-f]{{64}}-{_UNIQUE}")
_LOCK_FILE = re.compile(f"[0-9a-f]{{64}}[.](?:(?:[0-9]+[.])?lock|(?:failed|log)(?:-{_UNIQUE})?)")
_TOP_FILE = re.compile(rf"(?:usage|{re.escape(MARKER)})(?:-{_UNIQUE})?|sweep[.]lock")
_OWN_FOLDERS = frozenset({".slots", ".outages", ".launcher", ".compilers"})
_BESIDE = frozenset({"device", "launcher", "lost+found"})
"""What may lie beside ``v1`` in a folder that is not ours yet: our other parts in the user's cache, a disk's own."""
_LIMIT = 4096
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.ELOOP})


class NotOursError(UntrustedError):
    """The folder holds what neff-cache did not make; the message names the folder, what was found, and what to do."""


def is_prefix(name: str) -> bool:
    """Return whether a folder may hold entries: the first two digits of their keys."""
    return _PREFIX.fullmatch(name) is not None


def is_entry(name: str, prefix: str) -> bool:
    """Return whether ``name`` is an entry's folder in the folder ``prefix``."""
    return is_digest(name) and name.startswith(prefix)


def is_temporary(name: str) -> bool:
    """Return whether a process of ours made a folder of this name to fill it."""
    return _TEMPORARY.fullmatch(name) is not None


def is_bad(name: str) -> bool:
    """Return whether ``name`` is that of a damaged entry, set aside."""
    return _BAD.fullmatch(name) is not None


def is_lock_file(name: str) -> bool:
    """Return whether ``name`` is that of a lock, or of a failure left beside it."""
    return _LOCK_FILE.fullmatch(name) is not None


def is_marked(files: Files, top: int, shown: str) -> bool:
    """Return whether the opened ``v1`` bears our marker; raises `NotOursError` for another cache's, and `OSError`."""
    try:
        descriptor = files.open_file(MARKER, top)
    except OSError as error:
        if error.errno in ABSENT:
            return False
        if error.errno in _NO_FOLDER:
            raise NotOursError(_refusal(shown, f"v1/{MARKER}")) from error
        raise
    try:
        found = files.read(descriptor, _LIMIT)
    finally:
        files.close(descriptor)
    if not found.startswith(_BEGINS) and not MARK.startswith(found):  # a crash may have cut it short
        raise NotOursError(_refusal(shown, f"v1/{MARKER}"))
    return len(found) >= len(_BEGINS)


def check_new(files: Files, root: int, shown: str) -> None:
    """Raise `NotOursError` if something lies in the opened folder in which a tier is to be made."""
    for name in sorted(files.list(root)):
        if name not in _BESIDE and name != "v1" and not name.startswith("."):
            raise NotOursError(_refusal(shown, name))


def check_unmarked(files: Files, top: int, shown: str) -> None:
    """Raise `NotOursError` if the opened ``v1``, which has no marker, holds anything but what we make there."""
    stranger = _stranger(files, top, _LEVELS, "", "")
    if stranger is not None:
        raise NotOursError(_refusal(shown, f"v1/{stranger}"))


def _stranger(files: Files, directory: int, levels: tuple[_Level, ...], name: str, above: str) -> str | None:
    """Return the path of something that is not ours, or None; ``name`` is that of the opened directory."""
    level, *below = levels
    for child in sorted(files.list(directory)):
        if child.startswith(".nfs") or level.ours(child, name):
            continue
        if not level.descended(child, name):
            return above + child
        try:
            descriptor = files.open_directory(child, directory)
        except OSError as error:
            if error.errno in ABSENT:
                continue  # another process is at work here
            if error.errno in _NO_FOLDER:
                return above + child
            raise
        try:
            found = _stranger(files, descriptor, tuple(below), child, f"{above}{child}/")
        finally:
            files.close(descriptor)
        if found is not None:
            return found
    return None


class _Level(NamedTuple):
    """Names in a folder, given its own: ``ours`` whatever they hold, ``descended`` if all that they hold is ours."""

    ours: Callable[[str, str], bool]
    descended: Callable[[str, str], bool]


_LEVELS = (
    _Level(
        lambda name, _: _TOP_FILE.fullmatch(name) is not None or name in _OWN_FOLDERS,
        lambda name, _: is_project(name),
    ),
    _Level(lambda _name, _: False, lambda name, _: name in frozenset[str](Kind)),
    _Level(lambda name, _: name == LOCKS or is_bad(name), lambda name, _: is_prefix(name)),
    _Level(lambda name, prefix: is_temporary(name) or is_entry(name, prefix), lambda _name, _prefix: False),
)


def _refusal(shown: str, found: str) -> str:
    return (
        f"{shown} holds what neff-cache did not make ({found!r}), so it keeps nothing there and deletes nothing:"
        f" set NEURON_CACHE_NODE_DIR to a new or empty folder, such as {shown}/neff-cache"
    )
