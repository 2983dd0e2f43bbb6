"""A variable of the backend that is set and empty is one that is not set, or is refused in a sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import neuron_backend
from client.warnings import Notices
from neuron_backend import shadow
from neuron_backend.compilers import compiler_name
from neuron_backend.dynamo.options import Options
from neuron_backend.runtimes import get_runtime
from neuron_backend.runtimes.xla_client import thread_count

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path(neuron_backend.__file__).parent
_PATTERN = re.compile(r"\bNEURON_BACKEND_[A-Z_]*[A-Z]\b")
_OF_THE_LIBRARY = {"NEURON_BACKEND_DEVICES", "NEURON_BACKEND_MEMORY_LIMIT"}
_BY_ITSELF = {"NEURON_BACKEND_LIBNRT"}
"""Read where there is a Neuron runtime: `tests/neuron_backend/runtimes` has them."""


def _read() -> set[str]:
    sources = [path for path in _ROOT.rglob("*") if path.suffix in {".py", ".h", ".cpp"}]
    return {name for path in sources for name in _PATTERN.findall(path.read_text())}


def _observed(environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        "compiler": compiler_name(environ),
        "runtime": type(get_runtime(environ)),
        "threads": thread_count(environ),
        "shadow": shadow.fraction(environ, Notices()),
        "options": Options.read(None, None, environ),
    }


@pytest.mark.parametrize("name", sorted(_read() - _OF_THE_LIBRARY - _BY_ITSELF))
def test_an_empty_variable_is_none(name: str) -> None:
    usual = {"PATH": "/nowhere"}
    expected = _observed(usual)
    for blank in ("", " ", "\t"):
        assert _observed({**usual, name: blank}) == expected


def test_an_empty_number_of_devices_or_bytes_is_none() -> None:
    script = "import torch, neuron_backend; print(torch.ones(3, device='neuron').device, torch.neuron.device_count())"
    for name in sorted(_OF_THE_LIBRARY):
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, name: ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert ran.stdout.split() == ["neuron:0", "1"], name
