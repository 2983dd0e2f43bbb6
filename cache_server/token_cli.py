"""``neff-cache token``: the tokens of a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cache_server.admin_calls import admin_calls
from cache_server.grants import grant_to_json, grants_text, parse_grant
from client.cli.options import JsonFlag, Url  # noqa: TC001 - typer reads the annotations
from client.cli.output import Cell, actor_cell, print_json, print_table, say, time_cell
from client.errors import ConfigurationError
from client.settings import parse_seconds

if TYPE_CHECKING:
    from client.wire import Json

token_app = typer.Typer(help="Make, list and revoke the tokens of a cache server.", no_args_is_help=True)

Label = Annotated[str, typer.Argument(help="What it is for; shown in lists, logs and the audit trail.")]
Grants = Annotated[
    list[str],
    typer.Option(
        "--grant",
        help="SCOPE,SCOPE@PROJECT/KIND: scopes read, write, lease, delete, foreign, metrics, admin; project and kind "
        "may be left out, and mean all; `*` and `?` stand for anything in a project. May be given several times.",
        metavar="GRANT",
    ),
]
Expires = Annotated[str | None, typer.Option(help="How long it is good for, such as 90d. [default: for ever]")]
Rate = Annotated[
    float | None, typer.Option(help="Requests a second it may send to each server, in place of their setting.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The token's id, as `list` shows it.")]


@token_app.command()
def create(
    label: Label,
    grant: Grants,
    *,
    expires: Expires = None,
    rate: Rate = None,
    url: Url = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a token and print it, on standard output: nobody can see it again. Needs scope admin on all projects."""
    body = {
        "label": label,
        "grants": [grant_to_json(parse_grant(text)) for text in grant],
        "expires_seconds": expires_seconds(expires),
        "rate": rate,
    }
    with admin_calls(url) as calls:
        print_created(calls.call("POST", "/admin/v1/tokens", body), as_json=as_json)


def expires_seconds(text: str | None) -> float | None:
    """Return a token's life; raises `ConfigurationError`."""
    try:
        return None if text is None else parse_seconds(text)
    except ValueError:
        raise ConfigurationError(f"--expires {text!r}: expected a time such as 90d") from None


def print_created(created: Json, *, as_json: bool) -> None:
    """Print a new token: itself on standard output, for a file or a variable, the rest beside it."""
    if as_json:
        print_json(created)
        return
    typer.echo(created["token"])
    until = f", until {created['expires']}" if created["expires"] else ""
    rights = f"{grants_text(created['grants'])}{until}"
    say(f"token {created['id']} for {created['label']!r}: {rights}; it is not shown again")


@token_app.command("list")
def list_tokens(*, url: Url = None, as_json: JsonFlag = False) -> None:
    """List all tokens, revoked and expired ones too. Needs scope admin on all projects."""
    with admin_calls(url) as calls:
        print_tokens(calls.get("/admin/v1/tokens")["tokens"], as_json=as_json)


def print_tokens(found: list[Json], *, as_json: bool) -> None:
    """Print tokens as the interface lists them."""
    if as_json:
        print_json(found)
        return
    print_table(
        ("id", "label", "state", "grants", "created", "by", "expires", "last used"),
        (
            (
                Cell(line["id"]),
                line["label"],
                line["state"],
                grants_text(line["grants"]),
                time_cell(line["created"]),
                actor_cell(line["created_by"] or "-"),
                time_cell(line["expires"]),
                time_cell(line["last_used"]),
            )
            for line in found
        ),
    )


@token_app.command()
def revoke(public_id: Id, *, url: Url = None, as_json: JsonFlag = False) -> None:
    """Revoke a token for good: every server refuses it within a second. Needs scope admin on all projects."""
    if not public_id.isalnum():
        raise ConfigurationError(f"{public_id!r} is no token's id: expected 12 hexadecimal digits, as they are listed")
    with admin_calls(url) as calls:
        calls.call("DELETE", f"/admin/v1/tokens/{public_id}")
    print_revoked(public_id, as_json=as_json)


def print_revoked(public_id: str, *, as_json: bool) -> None:
    """Say that a token is revoked."""
    if as_json:
        print_json({"revoked": public_id})
    else:
        say(f"token {public_id} is revoked")


@token_app.command()
def whoami(*, url: Url = None, as_json: JsonFlag = False) -> None:
    """Say what the server calls the token that is in force here, and what it may do."""
    with admin_calls(url) as calls:
        found: Any = calls.get("/v1/-/whoami")
    if as_json:
        print_json(found)
        return
    print_table(
        ("scopes", "project", "kind"),
        ((",".join(grant["scopes"]), grant["project"], grant["kind"]) for grant in found["grants"]),
    )
    token = f", token {found['token']}" if found["token"] else ""
    say(f"{found['name']}{token}" + ("" if found["grants"] else ": no rights at all"))
