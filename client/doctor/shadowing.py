"""Files of the user's that Python finds in place of our own packages."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path
from typing import TYPE_CHECKING

from client.doctor.base import Finding, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.doctor.base import Surroundings

_PACKAGES = Path(__file__).resolve().parent.parent.parent
NAMES = ("client", "neuron_backend", "cache_server")


def check(surroundings: Surroundings) -> Iterator[Finding]:
    """Look for modules called as our packages where a script that is started here would find them first."""
    found = False
    for folder in dict.fromkeys(folder.absolute() for folder in surroundings.folders):
        if folder.resolve() == _PACKAGES:
            continue
        for name in NAMES:
            path = shadow(folder, name)
            if path is not None:
                found = True
                yield problem(
                    f"`import {name}` in a script that is started in {folder} finds {path}, not neff-cache's package",
                    f"rename {path}, or start Python with -P",
                )
    if not found:
        yield ok(f"no module hides {', '.join(NAMES)}")


def shadow(folder: Path, name: str) -> Path | None:
    """Return the module or package in ``folder`` that ``import name`` would find there, or None."""
    for path in (folder / name / "__init__.py", folder / f"{name}.py"):
        if path.is_file():
            return path
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    return next((path for suffix in suffixes if (path := folder / f"{name}{suffix}").is_file()), None)
