"""``neff-cache admin token``: tokens on the database itself, for the first one, or when no admin token is left."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from cache_server.grants import parse_grant
from cache_server.integrity_cli import DatabaseUrl, DataDir, Store, settings_of
from cache_server.token_cli import (
    Expires,
    Grants,
    Id,
    Label,
    Rate,
    expires_seconds,
    print_created,
    print_revoked,
    print_tokens,
)
from client.cli.options import JsonFlag  # noqa: TC001 - typer reads the annotations
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cache_server.services.tokens import Tokens

offline_token_app = typer.Typer(
    help="Tokens without a running server: on its database, as for the first token of all.", no_args_is_help=True
)

_ACTOR = "admin command"
"""How the audit trail names whoever may read and write the database."""


@offline_token_app.command()
def create(
    label: Label,
    grant: Grants,
    *,
    expires: Expires = None,
    rate: Rate = None,
    data_dir: DataDir = None,
    store: Store = None,
    database: DatabaseUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a token and print it, on standard output: nobody can see it again. With SQLite, stop the server first."""
    grants, seconds = tuple(map(parse_grant, grant)), expires_seconds(expires)
    with _tokens("create", data_dir, store, database) as tokens:
        from cache_server.access import Actor  # noqa: PLC0415
        from cache_server.services.tokens import NewToken  # noqa: PLC0415 - the base install has no database

        token, shown = tokens.create(NewToken(label, grants, seconds, rate), by=Actor(_ACTOR))
    print_created({"token": token, **shown}, as_json=as_json)


@offline_token_app.command("list")
def list_tokens(
    *,
    data_dir: DataDir = None,
    store: Store = None,
    database: DatabaseUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """List all tokens, revoked and expired ones too. With SQLite, stop the server first."""
    with _tokens("list", data_dir, store, database) as tokens:
        print_tokens(tokens.list(), as_json=as_json)


@offline_token_app.command()
def revoke(
    public_id: Id,
    *,
    data_dir: DataDir = None,
    store: Store = None,
    database: DatabaseUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Revoke a token for good. With SQLite, stop the server first."""
    with _tokens("revoke", data_dir, store, database) as tokens:
        from cache_server.access import Actor  # noqa: PLC0415

        if not tokens.revoke(public_id, by=Actor(_ACTOR)):
            raise ConfigurationError(f"there is no token {public_id}; `neff-cache admin token list` shows all")
    print_revoked(public_id, as_json=as_json)


@contextmanager
def _tokens(command: str, data_dir: Path | None, store: str | None, database: str | None) -> Iterator[Tokens]:
    settings = settings_of(f"token {command}", data_dir, store, database)
    from cache_server.service import Service  # noqa: PLC0415 - the base install has no database

    with Service.for_maintenance(settings) as service:
        service.tokens.recover()
        yield service.tokens
