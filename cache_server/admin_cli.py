"""``neff-cache admin``: what operators tell a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import typer

from cache_server.admin_calls import admin_calls
from cache_server.audit_cli import audit
from cache_server.integrity_cli import fsck, rebuild_index
from cache_server.life_cycle_cli import backup, check_config, gc, migrate
from cache_server.token_offline_cli import offline_token_app
from cache_server.trust_cli import trust_app
from client.cli.opening import Here
from client.cli.options import JsonFlag, Project, Url  # noqa: TC001 - typer reads the annotations
from client.cli.output import print_json, print_table, say
from client.errors import ConfigurationError
from client.names import check_digest, check_kind, check_output, check_project
from client.settings import parse_bytes, parse_seconds
from client.sizes import seconds_text, size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.wire import Json

admin_app = typer.Typer(
    help="Operate a cache server: figures, quotas, rules, pins, collection, integrity, audit, first tokens.",
    no_args_is_help=True,
)
collection_app = typer.Typer(
    help="Collect the entries that are worth least; stop it and let it go on.", no_args_is_help=True
)

admin_app.add_typer(collection_app, name="collection")
admin_app.add_typer(trust_app, name="trust")
admin_app.command("fsck")(fsck)
admin_app.command("rebuild-index")(rebuild_index)
admin_app.command("audit")(audit)
admin_app.command("check-config")(check_config)
admin_app.command("migrate")(migrate)
admin_app.command("backup")(backup)
admin_app.command("gc")(gc)
admin_app.add_typer(offline_token_app, name="token")

_Value = TypeVar("_Value")

_COLLECTING = 3600.0
"""Seconds that one collection may take."""

Of = Annotated[str | None, typer.Option("--project", help="Only this project.", metavar="NAME")]
Whole = Annotated[bool, typer.Option("--server", help="The whole server, in place of a project.")]
Without = Annotated[bool, typer.Option("--none", help="Remove what was set.")]
Target = Annotated[str, typer.Argument(help="KIND/KEY, label:NAME or plan:NAME.")]


@collection_app.command("run")
def run_collection(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go and why.")] = False,
    project: Of = None,
    url: Url = None,
    as_json: JsonFlag = False,
) -> None:
    """Collect what quotas, limits and rules ask for; the server does the same every few minutes by itself.

    Exit status 1 if collection is paused, or another one runs.
    """
    with admin_calls(url) as calls:
        body = {"project": project and check_project(project), "dry_run": dry_run}
        outcome = calls.call("POST", "/admin/v1/collect", body, patience=_COLLECTING)
    if as_json:
        print_json(outcome)
    else:
        print_table(
            ("project", "entry", "reason", "size", "compile time", "label", "compiler"),
            (
                (
                    line["project"],
                    f"{line['kind']}/{line['key']}",
                    line["reason"],
                    size_text(line["stored_bytes"]),
                    seconds_text(line["compile_seconds"]),
                    line["label"],
                    f"{line['compiler']} {line['compiler_version']}".strip(),
                )
                for line in outcome["listed"]
            ),
        )
        say(_sentence(outcome))
    raise typer.Exit(0 if outcome["state"] in {"done", "dry_run"} else 1)


def _sentence(outcome: Json) -> str:
    amount = f"{outcome['entries']} entries, {size_text(outcome['bytes'])}"
    sentences = {
        "done": f"collected {amount}; {outcome['spared']} were in use and stay",
        "dry_run": f"would collect {amount}",
        "paused": "collection is paused; `neff-cache admin collection status` says why",
        "busy": "another collection runs; nothing was done",
    }
    return sentences.get(outcome["state"], f"interrupted after {amount}; run it again")


@admin_app.command()
def stats(*, url: Url = None, as_json: JsonFlag = False) -> None:
    """Entries, bytes, uses, quotas and pins of every project."""
    with admin_calls(url) as calls:
        value = calls.get("/admin/v1/stats")
    if as_json:
        print_json(value)
        return
    print_table(
        ("project", "kind", "entries", "stored", "compile time", "hits", "quota", "pins"),
        (
            (
                project,
                kind,
                str(line["entries"]),
                size_text(line["stored_bytes"]),
                seconds_text(line["compile_seconds"]),
                str(line["hits"]),
                _limit_text(found.get("quota")),
                str(found.get("pins", 0)),
            )
            for project, found in sorted(value["projects"].items())
            for kind, line in sorted(found["kinds"].items())
        ),
    )


def _limit_text(limit: Json | None) -> str:
    if limit is None:
        return "-"
    size, count = limit["max_bytes"], limit["max_entries"]
    texts = ([] if size is None else [size_text(size)]) + ([] if count is None else [f"{count} entries"])
    return ", ".join(texts) or "-"


@admin_app.command()
def quota(
    *,
    project: Of = None,
    server: Whole = False,
    max_bytes: Annotated[str | None, typer.Option(help="Such as 500GiB.")] = None,
    max_entries: Annotated[int | None, typer.Option(min=0)] = None,
    none: Without = False,
    url: Url = None,
    as_json: JsonFlag = False,
) -> None:
    """Set what a project may hold, or the whole server before it collects; without a bound, show all quotas."""
    size = None if max_bytes is None else _parsed(parse_bytes, max_bytes, "--max-bytes", "a size such as 500GiB")
    body = {"max_bytes": size, "max_entries": max_entries}
    if none or body != {"max_bytes": None, "max_entries": None}:
        with admin_calls(url) as calls:
            calls.call("PUT", f"{_place(project, server)}/quota", body)
    _show_policy(url, "quotas", as_json=as_json)


@admin_app.command()
def rules(
    *,
    project: Of = None,
    server: Whole = False,
    unused: Annotated[str | None, typer.Option(help="Drop what was not used for this time, such as 60d.")] = None,
    keep_versions: Annotated[
        int | None, typer.Option(help="Keep the newest so many releases of each compiler.", min=1)
    ] = None,
    oldest: Annotated[
        list[str] | None,
        typer.Option(help="Drop what an older release built: COMPILER=VERSION; may be given several times."),
    ] = None,
    none: Without = False,
    url: Url = None,
    as_json: JsonFlag = False,
) -> None:
    """Set what a project drops whatever room there is; --server is for projects without rules of their own.

    What is not given is not a rule any more. Without any rule, show all of them.
    """
    seconds = None if unused is None else _parsed(parse_seconds, unused, "--unused", "a time such as 60d")
    body = {"unused_seconds": seconds, "keep_versions": keep_versions, "oldest": _oldest(oldest or [])}
    if none or unused or keep_versions or oldest:
        place = _place(project, server)
        with admin_calls(url) as calls:
            calls.call("DELETE" if none else "PUT", f"{place}/rules", None if none else body)
    _show_policy(url, "rules", as_json=as_json)


def _oldest(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        compiler, separator, version = text.partition("=")
        if not separator or not compiler or not version:
            raise ConfigurationError(f"--oldest {text!r}: expected COMPILER=VERSION, such as neuronx-cc=2.20")
        found[compiler] = version
    return found


def _parsed(parse: Callable[[str], _Value], text: str, option: str, expected: str) -> _Value:
    try:
        return parse(text)
    except ValueError:
        raise ConfigurationError(f"{option} {text!r}: expected {expected}") from None


def _place(project: str | None, server: bool) -> str:
    if (project is None) != server:
        raise ConfigurationError("say whom it is for: --project NAME, or --server for all together")
    return "/admin/v1/server" if project is None else f"/admin/v1/projects/{check_project(project)}"


def _show_policy(url: str | None, table: str, *, as_json: bool) -> None:
    with admin_calls(url) as calls:
        value = calls.get("/admin/v1/policy")[table]
    if as_json:
        print_json(value)
    else:
        print_table(("for", table), ((name, _policy_text(row)) for name, row in sorted(value.items())))


def _policy_text(row: Json) -> str:
    if "max_bytes" in row:
        return _limit_text(row)
    texts = [f"{compiler} {version} and newer" for compiler, version in sorted(row["oldest"].items())]
    if row["keep_versions"] is not None:
        texts.append(f"newest {row['keep_versions']} releases")
    if row["unused_seconds"] is not None:
        texts.append(f"used within {seconds_text(row['unused_seconds'])}")
    return "keeps: " + ", ".join(texts) if texts else "keeps everything"


@admin_app.command()
def pin(target: Target, *, project: Project = None, url: Url = None, as_json: JsonFlag = False) -> None:
    """Pin an entry, all entries of a label, or those of a stored plan: they are never collected."""
    answer = _on_pin("PUT", target, project, url)
    if as_json:
        print_json(answer)
    else:
        say(f"{target} is pinned" if answer["created"] else f"{target} was pinned already")


@admin_app.command()
def unpin(target: Target, *, project: Project = None, url: Url = None, as_json: JsonFlag = False) -> None:
    """Remove a pin. Exit status 1 if there was none."""
    was_pinned = target in {_target(line) for line in _pins(project, url)}
    if was_pinned:
        _on_pin("DELETE", target, project, url)
    if as_json:
        print_json({"removed": was_pinned})
    else:
        say(f"{target} is not pinned any more" if was_pinned else f"{target} was not pinned")
    raise typer.Exit(0 if was_pinned else 1)


@admin_app.command()
def pins(*, project: Project = None, url: Url = None, as_json: JsonFlag = False) -> None:
    """List what is pinned in a project."""
    found = _pins(project, url)
    if as_json:
        print_json(found)
    else:
        print_table(
            ("pin", "entries", "by"), ((_target(line), str(line.get("entries", "")), line["by"]) for line in found)
        )


def _pins(project: str | None, url: str | None) -> list[Json]:
    with admin_calls(url) as calls:
        found: list[Json] = calls.get(f"/v1/{Here.open(url, project).settings.project}/pins")["pins"]
        return found


def _target(line: Json) -> str:
    return f"{line['kind']}/{line['key']}" if line["what"] == "entry" else f"{line['what']}:{line[line['what']]}"


def _on_pin(method: str, target: str, project: str | None, url: str | None) -> Any:
    what, separator, name = target.partition(":")
    if not separator:
        kind, _, key = target.partition("/")
        path = f"entries/{check_kind(kind)}/{check_digest(key)}"
    elif what == "label" and name:
        path = f"labels/{quote(name, safe='')}"
    elif what == "plan":
        path = f"plans/{check_output(name)}"
    else:
        raise ConfigurationError(f"{target!r}: expected KIND/KEY, label:NAME or plan:NAME")
    with admin_calls(url) as calls:
        return calls.call(method, f"/v1/{Here.open(url, project).settings.project}/pins/{path}")


@collection_app.command()
def pause(
    reason: Annotated[str, typer.Argument(help="Why; shown to whoever wonders.")],
    *,
    url: Url = None,
) -> None:
    """Stop all collection, on every server that shares the database."""
    with admin_calls(url) as calls:
        calls.call("POST", "/admin/v1/collection/pause", {"reason": reason})
    say("collection is paused")


@collection_app.command()
def resume(*, url: Url = None) -> None:
    """Let collection go on: also the confirmation that `rebuild-index` waits for."""
    with admin_calls(url) as calls:
        calls.call("POST", "/admin/v1/collection/resume")
    say("collection goes on")


@collection_app.command()
def status(*, url: Url = None, as_json: JsonFlag = False) -> None:
    """Say whether collection is paused, why and by whom. Exit status 1 if it is."""
    with admin_calls(url) as calls:
        paused = calls.get("/admin/v1/policy")["collection_paused"]
    if as_json:
        print_json({"paused": paused})
    else:
        say("collection is on" if paused is None else f"collection is paused by {paused['by']}: {paused['reason']}")
    raise typer.Exit(0 if paused is None else 1)
