"""The wheel works where nothing of the checkout is: bare environments, no compiler run, no device library."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.fakes.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(400)


def run(*command: str | Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd="/",
        env={**kept, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def environment(folder: Path, wheel: Path, *packages: str, extra: str = "") -> Path:
    """Return the Python of a bare environment: the wheel, what it and its ``extra`` ask for, and ``packages``."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-index", wheel)
    (target,) = folder.glob("lib/python*/site-packages")
    (ours,) = metadata.distributions(path=[str(target)])
    link_installed(target, *needs(ours, {extra}), *map(Requirement, packages))
    return python


def needs(distribution: metadata.Distribution, extras: set[str]) -> list[Requirement]:
    asked = [Requirement(text) for text in distribution.requires or ()]
    return [
        need
        for need in asked
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""})
    ]


def link_installed(target: Path, *required: Requirement) -> None:
    """Link distributions of our own environment, and what they need, into another one's folder of packages.

    Installing them takes minutes and is not what is tested here.
    """
    waiting, seen = list(required), set[str]()
    while waiting:
        need = waiting.pop()
        if str(need) in seen:
            continue
        seen.add(str(need))
        found = metadata.distribution(need.name)
        waiting += needs(found, need.extras)
        tops = {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in tops:
            link = target / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))


def test_the_wheel_holds_what_runs_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"client", "cache_server", "neuron_backend"}
    assert any(name.startswith("cache_server/_migrations/versions/") for name in names)
    assert any(name.endswith("neuron_device.cpp") for name in names)
    assert any(name.endswith("py.typed") for name in names)
    assert not [name for name in names if name.endswith((".so", ".pyc")) or "_lib/" in name]


def test_the_server_starts_from_the_wheel_alone(wheel, tmp_path):
    python = environment(tmp_path / "server", wheel, extra="server")
    command = python.parent / "neff-cache"
    assert run(command, "--version").strip() == "neff-cache 0.1.0"
    process = subprocess.Popen(
        [command, "serve", "--port", "0", "--data-dir", tmp_path / "data"],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
    )
    try:
        assert process.stdout is not None
        url = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
        with urllib.request.urlopen(f"{url}/readyz", timeout=HANG_SECONDS) as answer:
            assert answer.status == 200
            assert answer.read() == b"ok"
    finally:
        process.terminate()
        assert process.wait(timeout=HANG_SECONDS) == 0
        process.stdout.close()


@pytest.mark.soak
def test_torch_is_whole_beside_the_base_install(wheel, tmp_path):
    python = environment(tmp_path / "torch", wheel, "torch", "numpy")
    assert run(python.parent / "neff-cache", "--version").strip() == "neff-cache 0.1.0"
    script = "import torch; print(torch.ones(2).sum().item(), torch._C._get_privateuse1_backend_name())"
    assert run(python, "-W", "error", "-c", script).strip() == "2.0 privateuseone"
    needs = run(python.parent / "neff-cache", "backend", "--help")
    assert "build" in needs
    said = run(python, "-c", "import neuron_backend, torch")
    assert "jaxlib is not installed" in said
    refused = subprocess.run(
        [python.parent / "neff-cache", "serve"],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
        cwd="/",
    )
    assert refused.returncode == 2
    assert "pip install 'neff-cache[server]'" in refused.stderr
