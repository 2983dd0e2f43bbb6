"""``neff-cache admin trust``: whose signatures a project of the server asks for."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cache_server.admin_calls import AdminCalls, admin_calls
from client.cli.keys import PublicLine, key_json, key_state, read_public
from client.cli.opening import Here
from client.cli.options import JsonFlag, Project, Url  # noqa: TC001 - typer reads the annotations
from client.cli.output import Cell, print_json, print_table, say
from client.names import Kind  # noqa: TC001 - as above
from client.signing.trust import TrustedKey, TrustList, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

trust_app = typer.Typer(
    help="Say whose signatures a project asks for. See docs/trust.md; lists of readers are kept by `neff-cache key`.",
    no_args_is_help=True,
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="Id or name of a key that the project trusts.")]


@trust_app.command("show")
def show(*, project: Project = None, url: Url = None, as_json: JsonFlag = False) -> None:
    """Show whether the project requires signatures, and the keys it trusts."""
    name = _project(project)
    with admin_calls(url) as calls:
        value = calls.get(f"/v1/{name}/trust")
    keys = TrustList.parse("\n".join(value["keys"])).keys
    if as_json:
        print_json({"project": name, "signatures": value["signatures"], "keys": [key_json(key) for key in keys]})
        return
    print_table(
        ("id", "name", "state", "kinds", "projects"),
        (
            (Cell(key.key_id), key.name, key_state(key), ",".join(key.kinds) or "all", ",".join(key.projects) or "all")
            for key in keys
        ),
    )
    say(f"signatures are {value['signatures']} in {name}; {len(keys)} keys are known")


@trust_app.command()
def require(*, project: Project = None, url: Url = None) -> None:
    """Refuse to publish in the project what is not signed by a key it trusts. What stands there stays: see `check`."""
    _set(project, url, "required")


@trust_app.command()
def optional(*, project: Project = None, url: Url = None) -> None:
    """Publish also what is not signed. A signature by a key that the project knows must be right all the same."""
    _set(project, url, "optional")


def _set(project: str | None, url: str | None, signatures: str) -> None:
    name = _project(project)
    with admin_calls(url) as calls:
        calls.call("PUT", f"/v1/{name}/trust", {"signatures": signatures})
    say(f"signatures are {signatures} in {name}")


@trust_app.command()
def add(
    public: PublicLine,
    *,
    kind: Annotated[list[Kind] | None, typer.Option("--kind", help="It signs only these; may be repeated.")] = None,
    projects: Annotated[
        list[str] | None,
        typer.Option("--for", help="It speaks only for these projects; may be repeated.", metavar="PROJECT"),
    ] = None,
    project: Project = None,
    url: Url = None,
) -> None:
    """Trust a key in the project, or change what it may sign.

    For entries that are promoted: the key they were signed with, --for the project they come from.
    """
    found = read_public(public)
    key = replace(
        found, kinds=tuple(kind) if kind else found.kinds, projects=tuple(projects) if projects else found.projects
    )
    name = _project(project)
    with admin_calls(url) as calls:
        _put(calls, name, TrustedKey.parse(key.line))
    say(f"{key.name} ({key.key_id}) is trusted in {name}")


@trust_app.command()
def retire(
    key: Key,
    *,
    after: Annotated[str | None, typer.Option("--after", help="From when on; by default now.", metavar="TIME")] = None,
    project: Project = None,
    url: Url = None,
) -> None:
    """Publish nothing that a key signs from now on, or from a time on. For a key that was not stolen."""
    end = dt.datetime.now(dt.UTC) if after is None else parse_time(after).astimezone(dt.UTC)
    text = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    found = _on_key(key, project, url, lambda calls, name, each: _put(calls, name, replace(each, not_after=text)))
    say(f"{found.name} ({found.key_id}) is retired after {text}")


@trust_app.command()
def revoke(key: Key, *, project: Project = None, url: Url = None) -> None:
    """Never believe a key again, whatever it signed and whenever. It cannot be undone.

    Entries that stand are not removed: `check` lists them, and readers refuse them when their own lists say so.
    """
    found = _on_key(
        key,
        project,
        url,
        lambda calls, name, each: calls.call("POST", f"/v1/{name}/trust/keys/{each.key_id}/revoke"),
    )
    say(f"{found.name} ({found.key_id}) is revoked")


@trust_app.command()
def remove(key: Key, *, project: Project = None, url: Url = None) -> None:
    """Forget a key; it may be added again. A revoked key stays."""
    found = _on_key(
        key, project, url, lambda calls, name, each: calls.call("DELETE", f"/v1/{name}/trust/keys/{each.key_id}")
    )
    say(f"{found.name} ({found.key_id}) is not known any more")


@trust_app.command()
def check(*, project: Project = None, url: Url = None, as_json: JsonFlag = False) -> None:
    """List the entries that could not be published today: unsigned, or by nobody trusted. Ends with 1 if there are."""
    name = _project(project)
    with admin_calls(url) as calls:
        found = calls.get(f"/v1/{name}/trust/check?limit=1000")["entries"]
    if as_json:
        print_json(found)
    else:
        print_table(
            ("entry", "output", "why"),
            ((f"{line['kind']}/{line['key']}", line["name"], line["detail"]) for line in found),
        )
        if not found:
            say(f"every entry of {name} is signed by a key that it trusts")
    raise typer.Exit(1 if found else 0)


def _on_key(
    text: str, project: str | None, url: str | None, act: Callable[[AdminCalls, str, TrustedKey], object]
) -> TrustedKey:
    name = _project(project)
    with admin_calls(url) as calls:
        found = TrustList.parse("\n".join(calls.get(f"/v1/{name}/trust")["keys"])).find(text)
        act(calls, name, found)
    return found


def _put(calls: AdminCalls, name: str, key: TrustedKey) -> None:
    calls.call("PUT", f"/v1/{name}/trust/keys/{key.key_id}", {"line": key.line})


def _project(given: str | None) -> str:
    return Here.open(None, given).settings.project
