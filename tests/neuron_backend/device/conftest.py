from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch  # noqa: F401 - importing it registers the device

from neuron_backend import _autoload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMIT_SECONDS = 300  # for hangs: a first operator takes a minute on a machine with a load of 20


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    assert _autoload.state.registered, _autoload.state.reason


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a script in a process of its own, and returns what it printed."""

    def run(script: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            cwd=tmp_path,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("NEURON_")},
                "NEURON_CACHE_NODE_DIR": str(tmp_path / "node"),
                **environment,
            },
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
