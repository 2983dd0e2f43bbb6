"""Names that stand in paths and URLs: one pattern each, matched in full and by every party."""

from __future__ import annotations

import re
from enum import StrEnum

TYPE_CHECKING = False  # as in the launcher, whose hits have no time for typing
if TYPE_CHECKING:
    from client.errors import WireError

DEFAULT_PROJECT = "default"
MAIN_OUTPUT = "model.neff"
COMPILE_LOG = "compile.log"

_PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_OUTPUT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

_RESERVED_PROJECTS = frozenset({"meta", "quarantine"})
"""Folders of a store's root that are no project's."""


class Kind(StrEnum):
    """Namespaces that never mix; a closed set."""

    EAGER = "eager"
    GRAPH = "graph"
    CC = "cc"
    FOREIGN = "foreign"


def is_project(name: str) -> bool:
    """Return whether ``name`` is a project's name."""
    return _PROJECT.fullmatch(name) is not None and name not in _RESERVED_PROJECTS


def is_digest(text: str) -> bool:
    """Return whether ``text`` is 64 lower-case hexadecimal digits (a SHA-256): a key, or what an output is called."""
    return _DIGEST.fullmatch(text) is not None


def check_project(name: str) -> str:
    """Return ``name`` if it is a project's name, else raise `WireError`."""
    if not _PROJECT.fullmatch(name):
        raise _malformed(f"{name!r} is no project name: expected 1 to 63 of a-z, 0-9 and -, not beginning with -")
    if name in _RESERVED_PROJECTS:
        raise _malformed(f"{name!r} is no project name: stores keep their own files there; take another one")
    return name


def check_kind(name: str) -> Kind:
    """Return the `Kind` called ``name``, else raise `WireError`."""
    try:
        return Kind(name)
    except ValueError:
        raise _malformed(f"{name!r} is no kind: expected one of {', '.join(Kind)}") from None


def check_output(name: str) -> str:
    """Return ``name`` if it is an output's name, else raise `WireError`."""
    if not _OUTPUT.fullmatch(name):
        raise _malformed(f"{name!r} is no output name: expected 1 to 64 of a-z, 0-9, '.', '_' and '-'")
    return name


def check_digest(text: str, what: str = "key") -> str:
    """Return ``text`` if it is 64 lower-case hexadecimal digits (a SHA-256), else raise `WireError`."""
    if not _DIGEST.fullmatch(text):
        raise _malformed(f"{text!r} is no {what}: expected 64 lower-case hexadecimal digits")
    return text


def _malformed(message: str) -> WireError:
    from client.errors import WireError  # noqa: PLC0415 - a hit of the launcher never needs it

    return WireError(message)
