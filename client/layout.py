"""Names in the object store: the one layout of local disks, buckets and shared folders.

::

    <root>/<project>/<kind>/<aa>/<key>/<sha256>[.zst]     outputs, written first
    <root>/<project>/<kind>/<aa>/<key>/entry.json         written last: the entry exists when this does
    <root>/meta/<table>/<id>/<revision:012d>.json         policy of a server
    <root>/quarantine/<project>/<kind>/<key>/<time>/      what a server set aside

Paths are relative to the root, with ``/`` between parts. Every part is checked, so that no name from another party can
lead out of the root. ``aa`` are the first two digits of the key: 256 folders instead of one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from client.names import Kind, check_digest, check_project, is_digest, is_project

if TYPE_CHECKING:
    from client.wire import Encoding, Output

ENTRY_FILE = "entry.json"
ZSTD_SUFFIX = ".zst"
TEMPORARY_PREFIX = "tmp-"
"""Begins the name of everything that is still being written; what a killed writer left may go after a day."""
BAD_PREFIX = "bad-"
META = "meta"
QUARANTINE = "quarantine"

_OUTPUT_FILE = re.compile(rf"[0-9a-f]{{64}}(?:{re.escape(ZSTD_SUFFIX)})?")
_TEMPORARY = re.compile(f"{TEMPORARY_PREFIX}[0-9a-f]{{32}}")
_LEASE = re.compile(r"lease-([0-9]{8,})\.json")
_META_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_META_PATH = re.compile(f"{META}/({_META_PART.pattern})/({_META_PART.pattern})/([0-9]{{12}})[.]json")
_QUARANTINE_PARTS = 4
_KINDS = frozenset(kind.value for kind in Kind)
_TIME_PART = re.compile(r"[0-9][0-9A-Za-z.-]{0,63}")


def entry_folder(project: str, kind: Kind, key: str) -> str:
    """Return the folder of an entry; raises `client.errors.WireError` for a malformed name."""
    return f"{check_project(project)}/{kind.value}/{check_digest(key)[:2]}/{key}"


def entry_path(project: str, kind: Kind, key: str) -> str:
    """Return the path of an entry's description; raises `client.errors.WireError` for a malformed name."""
    return f"{entry_folder(project, kind, key)}/{ENTRY_FILE}"


def output_file(sha256: str, encoding: Encoding) -> str:
    """Return the name, within the entry's folder, of an output stored in that encoding."""
    return check_digest(sha256, "digest") + (ZSTD_SUFFIX if encoding == "zstd" else "")


def output_path(project: str, kind: Kind, key: str, output: Output) -> str:
    """Return the path of an output as its entry says that it is stored."""
    return f"{entry_folder(project, kind, key)}/{output_file(output.sha256, output.encoding)}"


def lease_file(generation: int) -> str:
    """Return the name, within the entry's folder, of a direct lease's generation."""
    return f"lease-{generation:08d}.json"


def lease_generation(name: str) -> int | None:
    """Return the generation that a file's name stands for, or None if it names no lease."""
    match = _LEASE.fullmatch(name)
    return None if match is None else int(match[1])


def is_temporary(name: str) -> bool:
    """Return whether a writer of ours gave this name to what it had not finished."""
    return _TEMPORARY.fullmatch(name) is not None


def is_entry_file(name: str) -> bool:
    """Return whether a file in an entry's folder can be ours: only such a one is ever removed from there."""
    known = name == ENTRY_FILE or _OUTPUT_FILE.fullmatch(name) is not None
    return known or lease_generation(name) is not None or is_temporary(name)


def is_quarantine_folder(path: str) -> bool:
    """Return whether ``path`` is a folder in which a server has set an entry aside."""
    first, *rest = path.split("/")
    if first != QUARANTINE or len(rest) != _QUARANTINE_PARTS:
        return False
    project, kind, key, time = rest
    return is_project(project) and kind in _KINDS and is_digest(key) and _TIME_PART.fullmatch(time) is not None


def quarantine_folder(project: str, kind: Kind, key: str, time: str) -> str:
    """Return where a server sets an entry aside; ``time`` is a UTC time without colons, such as 20261129T230000Z."""
    if not _TIME_PART.fullmatch(time):
        raise ValueError(f"{time!r} cannot stand in a path as a time")
    return f"{QUARANTINE}/{check_project(project)}/{kind.value}/{check_digest(key)}/{time}"


def meta_folder(table: str, row: str) -> str:
    """Return the folder that holds all revisions of a row of policy."""
    for part in (table, row):
        if not _META_PART.fullmatch(part):
            raise ValueError(f"{part!r} cannot stand in a path below {META}/")
    return f"{META}/{table}/{row}"


def meta_path(table: str, row: str, revision: int) -> str:
    """Return the path of one revision; revisions sort by name."""
    return f"{meta_folder(table, row)}/{revision:012d}.json"


def meta_parts(path: str) -> tuple[str, str, int] | None:
    """Return table, row and revision that a path stands for, or None if it names no revision."""
    match = _META_PATH.fullmatch(path)
    return None if match is None else (match[1], match[2], int(match[3]))
