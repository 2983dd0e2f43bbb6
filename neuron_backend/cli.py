"""``neff-cache backend``: the commands that this package adds to the client's command line."""

from __future__ import annotations

import typer

backend_app = typer.Typer(help="The PyTorch backend on this machine.", no_args_is_help=True)


@backend_app.callback()
def backend() -> None:
    """Keep ``build`` a sub-command though it is the only one."""


@backend_app.command()
def build() -> None:
    """Build the device library for the installed torch. Needs a C++20 compiler; takes ten seconds or more."""
    from neuron_backend.device.build import BuildError  # noqa: PLC0415 - imports nothing heavy, but only this needs it
    from neuron_backend.device.build import build as build_library  # noqa: PLC0415

    try:
        path = build_library()
    except BuildError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(str(path))
