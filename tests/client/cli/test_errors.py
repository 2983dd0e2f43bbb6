from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from client.cli import group
from client.cli.group import MEANINGS, Exit, RootGroup, exit_of
from client.cli.main import app
from client.cli.reference import DOCUMENT, reference
from client.errors import CacheMissError, ConfigurationError, Denied, NeffError, Refused, Unreachable
from client.node.permissions import UntrustedError
from tests.client.programs import document
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from tests.client.cli.conftest import CommandLine


def test_the_reference_says_what_the_commands_say() -> None:
    assert DOCUMENT.read_text() == reference(), "run `python -m client.cli.reference --write`"


@pytest.mark.parametrize(
    ("typed", "completed"), [("neff-cache pu", ["pull", "put"]), ("neff-cache pull --jo", ["--jobs"])]
)
def test_the_shell_completes_commands_and_options(typed: str, completed: list[str]) -> None:
    start = "import sys; sys.argv[0] = 'neff-cache'; from client.cli.main import main; main()"
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_NEFF_CACHE_COMPLETE": "complete_bash"}
    ran = subprocess.run(
        [sys.executable, "-c", start],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    assert ran.stdout.split() == completed


@pytest.mark.parametrize("status", Exit)
def test_every_exit_status_is_documented(status: Exit) -> None:
    assert MEANINGS[status]
    assert f"{int(status)}: " in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unreachable("gone"), 3),
        (Denied("no"), 2),
        (Refused("no", status=507), 1),
        (CacheMissError("no"), 1),
        (ConfigurationError("what"), 2),
        (NeffError("no neff"), 2),
        (UntrustedError("others"), 2),
        (OSError(errno.ENOSPC, "full"), 2),
        (KeyError("bug"), 70),
    ],
)
def test_an_error_ends_with_the_status_that_scripts_rely_on(error: Exception, status: int) -> None:
    assert exit_of(error) == status


def _failing(error: BaseException) -> typer.Typer:
    failing = typer.Typer(cls=RootGroup, pretty_exceptions_enable=False)

    @failing.callback()
    def root(debug: bool = False) -> None:
        pass

    @failing.command()
    def fail() -> None:
        raise error

    return failing


def test_a_user_sees_one_sentence_and_a_developer_the_traceback() -> None:
    failing = _failing(ZeroDivisionError("a bug"))
    result = CliRunner().invoke(failing, ["fail"])
    assert result.exit_code == 70
    assert result.stderr == "neff-cache: ZeroDivisionError: a bug; please report this\n"
    shown = CliRunner().invoke(failing, ["--debug", "fail"])
    assert isinstance(shown.exception, ZeroDivisionError)


def test_an_interrupted_command_says_so_and_no_more() -> None:
    result = CliRunner().invoke(_failing(KeyboardInterrupt()), ["fail"])
    assert (result.exit_code, result.stderr) == (130, "neff-cache: interrupted\n")


def test_one_broken_package_does_not_take_all_commands_along(
    monkeypatch: pytest.MonkeyPatch, alone: CommandLine
) -> None:
    broken = EntryPoint("broken", "no_such_module_of_ours:app", group.COMMANDS)
    real = group.entry_points

    def found(**which: str) -> object:
        return [broken] if which.get("name") == "broken" else [*real(**which), broken]

    monkeypatch.setattr(group, "entry_points", found)
    assert alone.run("status").status == 0
    assert "broken" in alone.run("--help").stdout
    ran = alone.run("broken")
    assert ran.status == 2
    assert "no_such_module_of_ours" in ran.stderr


def test_every_command_helps_and_prints_json(alone: CommandLine) -> None:
    for words in ("status", "ls", "show", "why", "get", "put", "pull", "check", "doctor", "gc", "bundle export"):
        ran = alone.run(*words.split(), "--help")
        assert ran.status == 0
        assert "--json" in ran.stdout, words


def test_a_wrong_option_is_wrong_usage(alone: CommandLine) -> None:
    assert alone.run("pull").status == 2
    assert alone.run("no-such-command").status == 2


def test_a_reader_that_hangs_up_is_no_error(alone: CommandLine) -> None:
    for number in range(200):  # more than a pipe holds
        alone.keep(document(str(number)))
    environment = {**os.environ, **{name: value for name, value in alone.environment.items() if value is not None}}
    process = subprocess.Popen(
        [sys.executable, "-m", "client.cli", "ls", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "[\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(HANG_SECONDS)


def test_a_command_that_is_interrupted_ends_at_once_and_without_a_traceback(folder: CommandLine) -> None:
    pipe = folder.folder / "plan"
    os.mkfifo(pipe)
    environment = {**os.environ, **{name: value for name, value in folder.environment.items() if value is not None}}
    process = subprocess.Popen(
        [sys.executable, "-m", "client.cli", "pull", str(pipe)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with pipe.open("w"):  # opened once the command reads its plan
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, output, errors) == (130, "", "neff-cache: interrupted\n")
