"""Building and finding the device library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

import neuron_backend
from neuron_backend.device import build
from tests.fakes.waiting import HANG_SECONDS

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
    """Return a compiler that notes that it ran, links for a second, and gives the library that is built already."""
    path = tmp_path / "compiler"
    path.write_text(
        f"""#!/bin/sh
echo run >> {tmp_path}/runs
while [ "$1" != -o ]; do [ "$1" = -c ] && compiles=1; shift; done
[ "$compiles" ] && exec touch "$2"
sleep 1
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
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=copied,
        env={**os.environ, "PYTHONPATH": str(copied), **environment},
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=HANG_SECONDS)[0].strip()
    finally:
        process.kill()
        process.wait()


def test_processes_that_build_at_once_compile_once(copied: Path, compiler: Path, tmp_path: Path) -> None:
    processes = [start_build(copied, CXX=str(compiler)) for _ in range(2)]
    paths = {finish(process) for process in processes}
    assert paths == {str(copied / "neuron_backend" / "_lib" / _name())}
    sources = list((copied / "neuron_backend" / "device").glob("*.cpp"))
    assert (tmp_path / "runs").read_text() == "run\n" * (len(sources) + 1)
    assert [path.name for path in (copied / "neuron_backend" / "_lib").glob("*.so")] == [_name()]


def _name() -> str:
    found = build.library_path()
    assert found is not None
    return found.name


def test_the_library_is_named_by_torch_its_build_the_machine_and_the_source(
    copied: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version, of_torch, machine, digest = _name().removesuffix(".so").rsplit("-", 3)
    assert version == torch.__version__
    assert machine == os.uname().machine
    assert digest == build.source_digest()[:16]
    with monkeypatch.context() as patch:
        (tmp_path / "version.py").write_text("cuda = '13.0'\n")
        patch.setattr(build, "_torch_folder", lambda: tmp_path)
        assert f"-{of_torch}-" not in build._file_name(version)
    with monkeypatch.context() as patch:
        patch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
        assert "-aarch64-" in build._file_name(version)
        assert build.source_digest()[:16] != digest  # other flags
    source = copied / "neuron_backend" / "device" / "memory.h"
    source.write_text(source.read_text() + "// changed\n")
    script = "from neuron_backend.device import build; print(build.source_digest(), build.library_path())"
    other, path = subprocess.run(
        [sys.executable, "-c", script],
        cwd=copied,
        env={**os.environ, "PYTHONPATH": str(copied), "XDG_CACHE_HOME": str(copied)},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
    ).stdout.split()
    assert other != build.source_digest()
    assert path == "None"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 'memory.h:1: error: no' >&2; exit 1", "ended with 1:\nmemory.h:1: error: no"),
        ('while [ "$1" != -o ]; do shift; done; echo garbage > "$2"', "a trial load of "),
    ],
)
@pytest.mark.share(1)
def test_a_failed_build_says_why_and_leaves_nothing(copied: Path, tmp_path: Path, script: str, complaint: str) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    assert complaint in finish(start_build(copied, CXX=str(compiler)))
    assert list((copied / "neuron_backend" / "_lib").glob("*.so")) == []
    assert list((copied / "neuron_backend" / "_lib").glob(".building*")) == []


def test_a_missing_compiler_is_named(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    without = finish(start_build(copied, PATH=str(tmp_path / "empty"), CXX=""))
    assert without.startswith("no C++ compiler found (looked for c++, g++, clang++)")
    assert "neff-cache backend build" in without
    assert finish(start_build(copied, CXX="no-such-compiler -O0")) == (
        "the C++ compiler 'no-such-compiler' (from CXX) is no program that can be started"
    )


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_the_users_cache_is_used_only_if_nobody_else_can_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    cache = tmp_path / "neff-cache" / "device"
    cache.mkdir(parents=True, mode=0o700)
    found = build.library_path()
    assert found is not None
    shutil.copyfile(found, cache / found.name)
    cache.chmod(mode)
    monkeypatch.setattr(build, "_package_directory", lambda: tmp_path / "nowhere")
    expected = cache / found.name if mode == 0o700 else None
    assert build.library_path({"XDG_CACHE_HOME": str(tmp_path)}) == expected


def test_a_link_in_the_users_cache_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "neff-cache" / "device"
    cache.mkdir(parents=True, mode=0o700)
    found = build.library_path()
    assert found is not None
    (cache / found.name).symlink_to(found)
    monkeypatch.setattr(build, "_package_directory", lambda: tmp_path / "nowhere")
    assert build.library_path({"XDG_CACHE_HOME": str(tmp_path)}) is None


@pytest.mark.soak
def test_where_the_package_cannot_be_written_the_users_cache_takes_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(build, "_package_directory", lambda: tmp_path / "file" / "_lib")
    path = build.build(compiler=str(compiler), environ={"HOME": str(tmp_path)})
    assert path.parent == tmp_path / ".cache" / "neff-cache" / "device"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert build.library_path({"HOME": str(tmp_path)}) == path
    with pytest.raises(build.BuildError, match="says where else to build"):
        build.build(compiler=str(compiler), environ={})


@pytest.mark.parametrize("place", ["package", "user's cache", "package that cannot be written"])
@pytest.mark.share(1)
def test_a_library_that_does_not_load_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: Path, place: str
) -> None:
    package, environ = tmp_path / "_lib", {"HOME": str(tmp_path)}
    cache = tmp_path / ".cache" / "neff-cache" / "device"
    name = _name()
    monkeypatch.setattr(build, "_package_directory", lambda: package)
    torn = (cache if place == "user's cache" else package) / name
    torn.parent.mkdir(parents=True, mode=0o700)
    torn.write_bytes(b"\x7fELF torn")
    torn.chmod(0o700)
    if place.endswith("cannot be written"):
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != package and access(path, mode))
    assert build.library_path(environ) == torn
    built = build.build(compiler=str(compiler), environ=environ)
    assert build.library_path(environ) == built
    assert built.parent == (package if place == "package" else cache)
    assert built.stat().st_size > 10_000
    assert build.build(compiler="no-such-compiler", environ=environ) == built


def test_importing_the_builder_imports_no_torch(run_python: Callable[..., str]) -> None:
    script = "import sys, neuron_backend.device.build as b; b.library_path(); print('torch' in sys.modules)"
    assert run_python(script) == "False\n"
