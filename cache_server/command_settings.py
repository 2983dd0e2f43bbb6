"""Settings of a command, from its options, the environment and a file; what is wrong with them in one sentence."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cache_server.configuration import Configured
    from cache_server.settings import Settings


def _named_path(text: str) -> Path:
    """Return the path that an option names; an empty one would be the working directory."""
    if not text.strip():
        raise typer.BadParameter("it is empty: give a path, or leave the option out")
    return Path(text)


PathOption = partial(typer.Option, parser=_named_path, metavar="PATH")
"""An option that names a file or a folder."""

ConfigFile = Annotated[
    Path | None, PathOption("--config", help="TOML file of settings; see docs/server.toml. [default: none]")
]


def read_settings(command: str, given: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Return the settings; options that are None leave theirs to the environment, and that to the file.

    Raises `ConfigurationError` for a value that is refused, `typer.Exit` where the server is not installed.
    """
    return read_configured(command, given, config).settings


def read_configured(command: str, given: Mapping[str, Any], config: Path | None = None) -> Configured:
    """Return the settings and where they come from; see `read_settings`."""
    try:
        from cache_server.configuration import configure  # noqa: PLC0415 - the base install has no web framework
    except ModuleNotFoundError as error:
        typer.echo(
            f"neff-cache {command} needs {error.name}: install it with `pip install 'neff-cache[server]'`", err=True
        )
        raise typer.Exit(2) from error
    return configure({name: value for name, value in given.items() if value is not None}, os.environ, config)
