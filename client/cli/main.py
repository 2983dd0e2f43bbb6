"""The command ``neff-cache``.

Other packages of this distribution add their commands through entry points, so that the client imports neither of them.
"""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import entry_points
from typing import Annotated

import typer

from client._version import __version__
from client.errors import NeffCacheError

COMMANDS = "neff_cache.commands"

app = typer.Typer(
    name="neff-cache",
    help="A shared, content-addressed compilation cache for AWS Neuron.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"neff-cache {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Keep the options that come before a command."""


def _add_commands() -> None:
    # the command that builds the device library must not be told that it is missing
    warnings.filterwarnings("ignore", message="neuron_backend: ")
    for entry in sorted(entry_points(group=COMMANDS), key=lambda entry: entry.name):
        app.add_typer(entry.load(), name=entry.name)


def main() -> None:
    """Run the command line; errors of ours become one sentence and exit code 1."""
    _add_commands()
    try:
        app()
    except NeffCacheError as error:
        typer.echo(f"neff-cache: {error}", err=True)
        sys.exit(1)
