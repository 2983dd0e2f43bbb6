"""The Kubernetes examples, checked without a cluster: their commands are run for real, on folders of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from client.foreign.table import LAYOUTS
from client.key import normalise_compiler_version
from client.look_alikes import KNOWN, OTHERS
from tests.fakes.programs import install_neuronx_cc
from tests.fakes.waiting import HANG_SECONDS
from tests.support import foreign_trees
from tests.support.jobs import job_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "deploy" / "kubernetes").glob("*-with-*-cache.yaml"))
LIMIT_SECONDS = HANG_SECONDS


def _pods(path: Path) -> Iterator[dict[str, Any]]:
    for document in yaml.safe_load_all(path.read_text()):
        assert {"apiVersion", "kind", "metadata", "spec"} <= document.keys()
        yield document["spec"]["template"]["spec"]


def _commands(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in pod["initContainers"] if one["command"][0] == "neff-cache"]


@pytest.fixture(params=EXAMPLES, ids=lambda path: path.stem)
def pod(request: pytest.FixtureRequest) -> dict[str, Any]:
    (found,) = _pods(request.param)
    return found


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2


def test_all_containers_share_the_directory_that_is_filled(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) <= volumes
        if container in _commands(pod):
            assert container["command"][1] == "sync"
            filled = mounts[container["command"][2]]
    (job,) = pod["containers"]
    served = {mount["name"]: mount["mountPath"] for mount in job["volumeMounts"]}[filled]
    settings = {entry["name"]: entry["value"] for entry in job["env"]}
    assert set(settings) <= set(OTHERS)
    assert set(settings.values()) == {served}


def test_every_setting_of_ours_in_them_is_one(pod: dict[str, Any]) -> None:
    for container in _commands(pod):
        names = {entry["name"] for entry in container["env"]}
        assert {name for name in names if name.startswith("NEURON_CACHE_")} <= KNOWN


def test_their_commands_fill_and_share_a_directory(pod: dict[str, Any], tmp_path: Path) -> None:
    here, shared = tmp_path / "here", tmp_path / "shared"
    real = install_neuronx_cc(tmp_path / "real")
    said = subprocess.run(
        [real.directory / "neuronx-cc", "--version"], capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS
    )
    version = normalise_compiler_version(said.stdout + said.stderr)
    base = job_environment(tmp_path / "node", str(shared), PATH=f"{real.directory}:{os.environ['PATH']}")
    for container in _commands(pod):
        _, command, _, *words = container["command"]
        layout = next(word.partition("=")[2] for word in words if word.startswith("--layout="))
        label = LAYOUTS[layout].label
        named = next((word.partition("=")[2] for word in words if word.startswith("--compiler-version=")), version)
        entry = foreign_trees.npc("a", version=named) if label == "npc" else foreign_trees.made(label, "a")
        given = {
            each["name"]: each["value"] for each in container["env"] if not each["name"].startswith("NEURON_CACHE_")
        }
        program = [sys.executable, "-m", "client.cli", command, str(here), *words]
        process = subprocess.Popen(program, env={**base, **given}, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            if "--watch" in words:
                entry.write(here)
                assert process.stdout.readline().startswith("1 pushed")
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 0
