from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError
from client.foreign.host import this_host
from tests.fakes.programs import install_neuronx_cc

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = {"PATH": "/none"}


def _environment(folder: Path) -> dict[str, str]:
    real = install_neuronx_cc(folder / "real")
    path = f"{real.directory}:{os.environ['PATH']}"
    return {"PATH": path, "NEURON_CACHE_NODE_DIR": str(folder / "node"), "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}


def test_version_target_and_age_are_those_of_the_compiler_installed_here(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    host = this_host(environment)
    assert host.version is not None
    assert host.target == "trn2"
    program = next((tmp_path / "real").rglob("neuronx-cc"))
    assert host.since == max(program.stat().st_mtime, program.stat().st_ctime)
    again = this_host(environment, version=f"NeuronX Compiler version {host.version}")
    assert (again.version, again.since) == (host.version, host.since)


def test_the_age_of_the_compiler_here_says_nothing_about_another_one(tmp_path: Path) -> None:
    host = this_host(_environment(tmp_path), version="9.9.9+abcd")
    assert host.version == "9.9.9+abcd"
    with pytest.raises(ConfigurationError, match="--compiled-after"):
        host.require_since()


def test_without_a_compiler_everything_has_to_be_said() -> None:
    host = this_host(NOBODY)
    for ask, option in (
        (host.require_version, "--compiler-version"),
        (host.require_target, "--target"),
        (host.require_since, "--compiled-after"),
    ):
        with pytest.raises(ConfigurationError, match=option):
            ask()
    said = this_host(NOBODY, version="2.27.5334.0+f702b353", target="trn1", compiled_after="2026-11-29T23:00:00Z")
    assert (said.require_version(), said.require_target()) == ("2.27.5334.0+f702b353", "trn1")
    assert said.require_since() == 1795993200.0


@pytest.mark.parametrize("word", ["yesterday", "12", ""])
def test_a_time_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ConfigurationError, match="--compiled-after"):
        this_host(NOBODY, version="1.2.3+ab", compiled_after=word)


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no compiler version"):
        this_host(NOBODY, version="latest")
