"""Settings of a command, from its options and the environment; what is wrong with them in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cache_server.settings import Settings


def read_settings(command: str, given: Mapping[str, Any]) -> Settings:
    """Return the settings; options that are None leave theirs to the environment.

    Raises `ConfigurationError` for a value that is refused, `typer.Exit` where the server is not installed.
    """
    try:
        from pydantic import ValidationError  # noqa: PLC0415 - the base install has no web framework

        from cache_server.settings import Settings  # noqa: PLC0415
    except ModuleNotFoundError as error:
        typer.echo(
            f"neff-cache {command} needs {error.name}: install it with `pip install 'neff-cache[server]'`", err=True
        )
        raise typer.Exit(2) from error
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(str(part) for part in problem["loc"])
        raise ConfigurationError(f"setting {name} = {problem['input']!r} is refused: {problem['msg']}") from error
