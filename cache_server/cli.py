"""``neff-cache serve``: the command that this package adds to the client's command line."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

serve_app = typer.Typer(help="Run the cache server.")


@serve_app.callback(invoke_without_command=True)
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8080,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of store and database. [default: $XDG_DATA_HOME/neff-cache]")
    ] = None,
    store: Annotated[str | None, typer.Option(help="Object store, file:///DIR. [default: in the data folder]")] = None,
    database: Annotated[str | None, typer.Option(help="SQLAlchemy URL. [default: SQLite in the data folder]")] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Host name that clients may use; may be given several times.")
    ] = None,
) -> None:
    """Serve the cache. Without options: this machine only, everything under one data folder, the user's own token."""
    try:
        from cache_server.serve import run  # noqa: PLC0415 - the base install has no web framework
        from cache_server.settings import Settings  # noqa: PLC0415
    except ModuleNotFoundError as error:
        typer.echo(f"neff-cache serve needs {error.name}: install it with `pip install 'neff-cache[server]'`", err=True)
        raise typer.Exit(2) from error
    given = {
        "host": host,
        "port": port,
        "data_dir": data_dir,
        "store": store,
        "database": database,
        "allowed_hosts": allowed_host,
    }
    raise typer.Exit(run(Settings(**{name: value for name, value in given.items() if value is not None})))
