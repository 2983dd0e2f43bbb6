"""``neff-cache serve``: the command that this package adds to the client's command line."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from cache_server.command_settings import ConfigFile, PathOption, read_settings

serve_app = typer.Typer(help="Run the cache server.")


@serve_app.callback(invoke_without_command=True)
def serve(  # noqa: PLR0917 - typer calls it by keyword
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes a free one. [default: 8080]", min=0, max=65535)
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(help="api: requests only; collector: the periodic work only; all: both. [default: all]"),
    ] = None,
    data_dir: Annotated[
        Path | None, PathOption(help="Folder of store and database. [default: $XDG_DATA_HOME/neff-cache]")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3://bucket/prefix. [default: in the data folder]")
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="postgresql://user@host/name, or SQLite. [default: in the data folder]")
    ] = None,
    migrate: Annotated[
        bool | None,
        typer.Option(
            "--migrate/--no-migrate",
            help="Bring the database to this version's schema, or leave that to `admin migrate`. [default: migrate]",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Name that clients reach this server by; may be given several times.")
    ] = None,
    anonymous: Annotated[
        str | None, typer.Option(help="What callers without a token may do: none, read or all. [default: none]")
    ] = None,
    identity_file: Annotated[
        Path | None, PathOption(help="TOML file of issuers whose identity tokens (OIDC) are taken, and their rules.")
    ] = None,
    tls_cert: Annotated[
        Path | None, PathOption(help="PEM file with certificate and chain: serve https. Read again on a change.")
    ] = None,
    tls_key: Annotated[
        Path | None, PathOption(help="PEM file with its key. [default: in the certificate's file]")
    ] = None,
    tls_client_ca: Annotated[
        Path | None, PathOption(help="PEM file with the authorities of client certificates.")
    ] = None,
    tls_client_mode: Annotated[
        str | None, typer.Option(help="Client certificates: off, optional or required. [default: off]")
    ] = None,
) -> None:
    """Serve the cache. Without options: this machine only, everything under one data folder, the user's own token.

    Every option is also an environment variable, NEFF_CACHE_PORT for --port, and a line in the file of --config, which
    knows more settings. The command line wins over the environment, and that over the file.
    """
    given = {
        "host": host,
        "port": port,
        "role": role,
        "data_dir": data_dir,
        "store": store,
        "database": database,
        "migrate": migrate,
        "allowed_hosts": allowed_host or None,
        "anonymous": anonymous,
        "identity_file": identity_file,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "tls_client_mode": tls_client_mode,
    }
    settings = read_settings("serve", given, config)
    from cache_server.serve import run  # noqa: PLC0415 - the base install has no web framework

    raise typer.Exit(run(settings))
