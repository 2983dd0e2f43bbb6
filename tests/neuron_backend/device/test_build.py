"""Building and finding the device library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import neuron_backend
from neuron_backend.device import build

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(neuron_backend.__file__).parents[1]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a directory with a copy of our packages and no built library."""
    for package in ("neuron_backend", "client"):
        shutil.copytree(
            ROOT / package, tmp_path / "copy" / package, ignore=shutil.ignore_patterns("_lib", "__pycache__")
        )
    return tmp_path / "copy"


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """Return a compiler that takes a second, notes that it ran, and gives the library that is built already."""
    path = tmp_path / "compiler"
    path.write_text(
        f"""#!/bin/sh
echo run >> {tmp_path}/runs
sleep 1
while [ "$1" != -o ]; do shift; done
cp '{build.library_path()}' "$2"
"""
    )
    path.chmod(0o755)
    return path


def start_build(copied: Path, **environment: str) -> subprocess.Popen[str]:
    script = """
from neuron_backend.device.build import BuildError, build
try:
    print(build())
except BuildError as error:
    print(error)
"""
