"""Where the Neuron compiler is: the real program, never a launcher of ours.

Only `os` is imported: the launcher runs this before every hit.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see the module's docstring
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "neuronx-cc"
SETTING = "NEURON_CACHE_COMPILER"

LAUNCHER_MARK = b"neff-cache launcher"
"""Stands in the first `_HEAD` bytes of every launcher, whichever release wrote it and wherever it was copied."""
_HEAD = 512


def find_compiler(environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of the compiler, or None if there is none.

    It is what ``NEURON_CACHE_COMPILER`` names, a path or a program on ``PATH``; else the first ``neuronx-cc`` on
    ``PATH``. Launchers are passed over, also behind symbolic links and where there are several.
    """
    for path in _candidates(environ):
        if os.path.isfile(path) and os.access(path, os.X_OK) and not is_launcher(path):  # noqa: PTH113
            return os.path.abspath(path)  # noqa: PTH100 - links are kept: a program may look at its own name
    return None


def first_on_path(environ: Mapping[str, str]) -> str | None:
    """Return what a caller gets that starts ``neuronx-cc``, launcher or not, or None."""
    for path in _on_path(NAME, environ):
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return os.path.abspath(path)  # noqa: PTH100
    return None


def is_launcher(path: str) -> bool:
    """Whether the file is a launcher of ours; one that cannot be read is none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs a launcher 3 ms
            return LAUNCHER_MARK in file.read(_HEAD)
    except OSError:
        return False


def _candidates(environ: Mapping[str, str]) -> Iterator[str]:
    wanted = environ.get(SETTING, "").strip() or NAME
    return iter((wanted,)) if "/" in wanted else _on_path(wanted, environ)


def _on_path(name: str, environ: Mapping[str, str]) -> Iterator[str]:
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        yield os.path.join(directory or os.curdir, name)  # noqa: PTH118
