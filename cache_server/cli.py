"""``neff-cache serve``: the command that this package adds to the client's command line."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from cache_server.command_settings import read_settings

serve_app = typer.Typer(help="Run the cache server.")


@serve_app.callback(invoke_without_command=True)
def serve(  # noqa: PLR0917 - typer calls it by keyword
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes a free one. [default: 8080]", min=0, max=65535)
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of store and database. [default: $XDG_DATA_HOME/neff-cache]")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3://bucket/prefix. [default: in the data folder]")
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="postgresql://user@host/name, or SQLite. [default: in the data folder]")
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Name that clients reach this server by; may be given several times.")
    ] = None,
    anonymous: Annotated[
        str | None, typer.Option(help="What callers without a token may do: none, read or all. [default: none]")
    ] = None,
) -> None:
    """Serve the cache. Without options: this machine only, everything under one data folder, the user's own token.

    Every option is also an environment variable, NEFF_CACHE_PORT for --port; the command line wins.
    """
    given = {
        "host": host,
        "port": port,
        "data_dir": data_dir,
        "store": store,
        "database": database,
        "allowed_hosts": allowed_host or None,
        "anonymous": anonymous,
    }
    settings = read_settings("serve", given)
    from cache_server.serve import run  # noqa: PLC0415 - the base install has no web framework

    raise typer.Exit(run(settings))
