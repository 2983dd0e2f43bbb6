"""Putting the launcher in place, and taking it away."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from client.compiler_path import find_compiler, is_launcher
from client.errors import ConfigurationError
from client.launcher import script
from client.launcher.cli import exec_app, launcher_app
from tests.fakes.waiting import HANG_SECONDS
from tests.support.launching import WORDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.launching import Host

EXEC = [sys.executable, "-c", "from client.launcher.cli import exec_app; exec_app()"]
LINE = ["neuronx-cc", "compile", "in.mlir", *WORDS, "--output", "out.neff"]


def test_a_program_that_is_not_ours_is_never_replaced_nor_removed(host: Host) -> None:
    before = host.real.program.read_bytes()
    for action in (script.install, script.uninstall):
        with pytest.raises(ConfigurationError, match="neuronx-cc"):
            action(host.real.directory)
    assert host.real.program.read_bytes() == before


def test_installing_twice_and_removing_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    for _ in range(2):
        path = script.install(directory)
    assert is_launcher(str(path))
    assert os.access(path, os.X_OK)
    assert script.uninstall(directory)
    assert not script.uninstall(directory)
    assert list(directory.iterdir()) == []


def test_where_it_cannot_be_written_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        script.install(tmp_path / "file")


@pytest.mark.parametrize("name", ["with a blank", "it's", "long" * 40])
def test_interpreters_with_awkward_paths_start_it_too(host: Host, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = host.folder / name / "python"
    interpreter.parent.mkdir()
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    script.install(host.first)
    assert is_launcher(str(host.first / "neuronx-cc"))
    assert host.compile().returncode == 0
    assert find_compiler(host.environment()) == str(host.real.program)


def test_a_command_under_exec_finds_the_launcher_and_keeps_its_exit_status(host: Host, tmp_path: Path) -> None:
    without = f"{host.real.directory}:{os.environ['PATH']}"
    environment = host.environment(PATH=without, XDG_CACHE_HOME=str(tmp_path))
    for _ in range(2):
        done = subprocess.run(
            [*EXEC, "--", *LINE], env=environment, cwd=host.work, check=True, capture_output=True, timeout=HANG_SECONDS
        )
        assert done.stderr == b""
    assert host.compiles == 1
    directory = tmp_path / "neff-cache" / "launcher"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [path.name for path in directory.iterdir()] == ["neuronx-cc"]
    other = subprocess.run([*EXEC, "sh", "-c", "exit 9"], env=environment, check=False, timeout=HANG_SECONDS)
    assert other.returncode == 9


def test_exec_goes_on_where_no_home_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    directory = script.private_directory(blocked, tmp_path)
    assert is_launcher(str(directory / "neuronx-cc"))
    with pytest.raises(ConfigurationError, match="XDG_CACHE_HOME"):
        script.private_directory(blocked, blocked)


def test_a_launcher_directory_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    open_to_all = tmp_path / "neff-cache" / "launcher"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    assert script.private_directory(tmp_path, tmp_path) != open_to_all


def test_exec_without_a_program_says_what_is_expected() -> None:
    for words in ([], ["--", "no-such-program-anywhere"]):
        result = CliRunner().invoke(exec_app, words)
        assert isinstance(result.exception, ConfigurationError)


def test_status_shows_what_a_job_would_get(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in host.environment().items():
        monkeypatch.setenv(name, value)
    host.compile("in.mlir", "--dump-to=x")
    shown = CliRunner().invoke(launcher_app, ["status", "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == {
        "first": str(host.first / "neuronx-cc"),
        "active": True,
        "compiler": str(host.real.program),
        "passed": {"--dump-to": 1},
    }
    monkeypatch.setenv("PATH", str(host.real.directory))
    assert CliRunner().invoke(launcher_app, ["status"]).exit_code == 1


def test_commands_install_and_remove(tmp_path: Path) -> None:
    installed = CliRunner().invoke(launcher_app, ["install", str(tmp_path / "bin")])
    assert installed.stdout.strip() == str(tmp_path / "bin" / "neuronx-cc")
    assert "first on PATH" in installed.stderr
    removed = CliRunner().invoke(launcher_app, ["uninstall", str(tmp_path / "bin"), "--json"])
    assert json.loads(removed.stdout) == {"removed": True}


def test_a_hit_imports_nothing_that_it_does_not_need(host: Host) -> None:
    host.compile()
    words = [sys.executable, "-IS", "-X", "importtime", str(host.first / "neuronx-cc"), *LINE[1:]]
    done = subprocess.run(
        words, env=host.environment(), cwd=host.work, check=True, capture_output=True, timeout=HANG_SECONDS
    )
    imported = {line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()}
    assert "client.launcher.tier" in imported
    heavy = {"typing", "dataclasses", "pathlib", "subprocess", "logging", "socket", "hashlib", "typer", "client.errors"}
    assert not imported & heavy
    assert "client.cache" not in imported
