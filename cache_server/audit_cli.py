"""``neff-cache admin audit``: who changed what on a running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from cache_server.admin_calls import admin_calls
from client.cli.options import JsonFlag, Url  # noqa: TC001 - typer reads the annotations
from client.cli.output import actor_cell, print_json, print_table, time_cell

if TYPE_CHECKING:
    from client.wire import Json

_PAGE = 1000


def audit(
    *,
    project: Annotated[str | None, typer.Option(help="Only changes of this project.", metavar="NAME")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, such as entry.delete; `entry` for all on entries.")
    ] = None,
    actor: Annotated[str | None, typer.Option(help="Only what this one did: a name, or a token's label.")] = None,
    since: Annotated[str | None, typer.Option(help="Only since then, such as 2026-11-29T23:00:00Z.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, the newest.", min=1)] = 100,
    before: Annotated[int | None, typer.Option(help="Only rows older than the one of this number.", min=1)] = None,
    url: Url = None,
    as_json: JsonFlag = False,
) -> None:
    """Show who changed what and when, the newest first. Needs scope admin on all projects."""
    wanted = {"project": project, "action": action, "actor": actor, "since": since}
    given = {name: value for name, value in wanted.items() if value is not None}
    rows: list[Json] = []
    with admin_calls(url) as calls:
        while len(rows) < limit:
            paging = {"limit": str(min(_PAGE, limit - len(rows)))} | ({} if before is None else {"before": str(before)})
            page = calls.get(f"/admin/v1/audit?{urlencode({**given, **paging})}")
            rows += page["rows"]
            before = page["next"]
            if before is None:
                break
    if as_json:
        print_json(rows)
        return
    print_table(
        ("time", "who", "action", "on", "what"),
        ((time_cell(row["time"]), actor_cell(row["actor"]), row["action"], _place(row), _detail(row)) for row in rows),
    )


def _place(row: Json) -> str:
    if row["key"] is not None:
        return f"{row['project']}/{row['kind']}/{row['key']}"
    return row["project"] or "server"


def _detail(row: Json) -> str:
    return " ".join(f"{name}={_word(value)}" for name, value in row["detail"].items() if value is not None)


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
