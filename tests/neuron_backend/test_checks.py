from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from client.doctor.base import State, Surroundings
from client.settings import Settings
from neuron_backend import _autoload, checks
from neuron_backend.device import build
from neuron_backend.rendering import render
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from client.doctor.base import Finding


def _examine() -> dict[str, list[Finding]]:
    surroundings = Surroundings({}, Settings())
    return {row.name: list(row.check(surroundings)) for row in checks.CHECKS}


def test_a_device_library_that_is_not_built_is_a_problem_that_names_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "library_path", lambda *_: None)
    monkeypatch.setattr(build, "torch_version", lambda: "9.9")
    (found,) = [finding for finding in _examine()["torch"] if finding.state is State.PROBLEM]
    assert "9.9" in found.text
    assert build.COMMAND in found.advice


def test_a_machine_without_torch_is_told_so_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "torch_version", lambda: None)
    assert [finding.state for finding in _examine()["torch"]] == [State.NOTE]


def test_a_vendors_package_that_owns_the_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_autoload, "vendor_package", lambda: "torch-neuronx")
    texts = [finding.text for finding in _examine()["backend"] if finding.state is State.NOTE]
    assert any("torch-neuronx" in text for text in texts)


def test_a_neuron_instance_without_its_compiler_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_neuron_host", lambda: True)
    states = [finding.state for finding in _examine()["backend"]]
    assert State.PROBLEM in states


def test_doctor_examines_the_backend_without_importing_torch() -> None:
    code = (
        "import sys; from client.doctor.base import Surroundings; from neuron_backend.checks import CHECKS;"
        "[list(row.check(Surroundings.here())) for row in CHECKS];"
        "print(*{'torch', 'jaxlib', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert done.stdout.split() == []


def test_bytes_that_are_no_module_are_said_to_be_none() -> None:
    pytest.importorskip("jaxlib")
    with pytest.raises(ValueError, match="portable artifact|deserialize|bytecode"):
        render(b"no module")
