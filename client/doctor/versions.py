"""Which release runs, on what."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from client._version import __version__
from client.doctor.base import Finding, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.doctor.base import Surroundings

_NEEDED = ("rfc8785", "zstandard")


def check(_: Surroundings) -> Iterator[Finding]:
    """Name the release, the interpreter and the libraries that keys and transfers depend on."""
    folder = Path(__file__).resolve().parent.parent
    yield ok(f"neff-cache {__version__} in {folder}, Python {platform.python_version()} at {sys.executable}")
    try:
        installed = version("neff-cache")
    except PackageNotFoundError:
        yield problem(
            "the distribution neff-cache is not installed: this is a bare source tree, so commands, checks and PyTorch "
            "backends of its other packages are not found",
            "run `pip install neff-cache`, or `pip install -e .` in the source tree",
        )
    else:
        if installed != __version__:
            yield problem(
                f"the installed distribution is {installed}, the code that runs is {__version__}",
                "install again, or take the other copy off PYTHONPATH",
            )
    for name in _NEEDED:
        try:
            yield ok(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield problem(f"{name} is not installed", "run `pip install neff-cache` again")
