"""The command ``neff-cache``.

Other packages of this distribution add their commands through entry points, so that the client imports neither of them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from client._version import __version__
from client.cli import bundling, health, keys, looking, mirroring, planning, promoting, shaping, syncing, why
from client.cli.group import MEANINGS, RootGroup

_HELP = """A shared, content-addressed compilation cache for AWS Neuron.

Jobs use the cache by themselves. With these commands people look into it, fill a node before a job needs it, and find
out why something was compiled again. The settings are those of jobs (NEURON_CACHE_URL and others).

Exit statuses:

"""

app = typer.Typer(
    name="neff-cache",
    cls=RootGroup,
    help=_HELP + "\n\n".join(f"{int(code)}: {meaning}" for code, meaning in MEANINGS.items()),
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
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback where something fails.")] = False,
) -> None:
    """Keep the options that come before a command; `RootGroup` reads them."""


looking.add_to(app)
planning.add_to(app)
mirroring.add_to(app)
syncing.add_to(app)
health.add_to(app)
why.add_to(app)
promoting.add_to(app)
app.add_typer(bundling.bundle_app, name="bundle")
app.add_typer(shaping.plan_app, name="plan")
app.add_typer(keys.key_app, name="key")


def main() -> None:
    """Run the command line."""
    app()
