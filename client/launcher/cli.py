"""``neff-cache exec`` and ``neff-cache launcher``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from client.cli.output import print_json, print_text, say
from client.compiler_path import NAME, find_compiler, first_on_path, is_launcher
from client.errors import ConfigurationError
from client.folders import base_folder

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

exec_app = typer.Typer(help="Run a command with the cache in front of its Neuron compiler.")
launcher_app = typer.Typer(
    help="The program `neuronx-cc` that puts the cache in front of the real one.", no_args_is_help=True
)


@exec_app.callback(
    invoke_without_command=True,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run(command: Annotated[list[str] | None, typer.Argument(help="The program and its words.")] = None) -> None:
    """Run a command, such as `neff-cache exec -- torchrun train.py`, whose `neuronx-cc` is the launcher.

    The command takes this process's place: its exit status, signals and streams are its own.
    """
    from client.launcher.script import private_directory  # noqa: PLC0415 - `--help` needs none of it

    if not command:
        raise ConfigurationError("no command to run: say `neff-cache exec -- torchrun train.py`, for instance")
    temporary = Path(tempfile.gettempdir())
    cache_home = base_folder(os.environ, "XDG_CACHE_HOME") or temporary  # a container's user may have no home
    directory = private_directory(Path(cache_home), temporary)
    environ = {**os.environ, "PATH": os.pathsep.join((str(directory), os.environ.get("PATH", os.defpath)))}
    program = shutil.which(command[0], path=environ["PATH"])
    if program is None:
        raise ConfigurationError(f"{command[0]!r} is no program on PATH")
    sys.stdout.flush()
    try:
        os.execve(program, command, environ)  # noqa: S606 - no shell: that is the point
    except OSError as error:
        raise ConfigurationError(f"{program} cannot be started ({error.strerror})") from error


@launcher_app.command()
def install(
    directory: Annotated[Path, typer.Argument(help="Where to put it: a directory before the compiler's on PATH.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Put the launcher into a directory, of an image for instance."""
    from client.launcher import script  # noqa: PLC0415

    path = script.install(directory.absolute())
    found = Situation.of(os.environ)
    if as_json:
        print_json({"installed": str(path), **found.to_json()})
        return
    print_text(str(path))
    if found.first is None or not path.samefile(found.first):
        say(f"put {path.parent} first on PATH; now {found.first or 'nothing'} is found there")


@launcher_app.command()
def uninstall(
    directory: Annotated[Path, typer.Argument(help="Where the launcher lies.")], *, as_json: JsonOption = False
) -> None:
    """Remove the launcher from a directory; any other program is left alone."""
    from client.launcher import script  # noqa: PLC0415

    removed = script.uninstall(directory.absolute())
    if as_json:
        print_json({"removed": removed})
    elif not removed:
        say(f"there is no launcher in {directory}")


@launcher_app.command()
def status(*, as_json: JsonOption = False) -> None:
    """Show what a job that starts `neuronx-cc` gets here, and what was passed to the compiler unshared."""
    from client.launcher.counting import read_passed  # noqa: PLC0415

    found = Situation.of(os.environ)
    passed = read_passed(os.environ)
    if as_json:
        print_json({**found.to_json(), "passed": passed})
    else:
        print_text(f"first on PATH   {found.first or f'no {NAME}'}{'  (the launcher)' if found.active else ''}")
        print_text(f"real compiler   {found.compiler or 'none'}")
        print_text(f"passed on       {sum(passed.values())}")
        for why, count in passed.items():
            print_text(f"  {count:6}  {why}")
    if not found.active:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Situation:
    """Which `neuronx-cc` a job would start, and which compiler that leads to; None where there is none."""

    first: str | None
    compiler: str | None

    @classmethod
    def of(cls, environ: Any) -> Situation:
        """Look along ``PATH``."""
        return cls(first_on_path(environ), find_compiler(environ))

    @property
    def active(self) -> bool:
        """Whether jobs start the launcher."""
        return self.first is not None and is_launcher(self.first)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"first": self.first, "active": self.active, "compiler": self.compiler}
