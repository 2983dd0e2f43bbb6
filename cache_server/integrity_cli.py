"""``neff-cache admin fsck`` and ``neff-cache admin rebuild-index``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cache_server.command_settings import PathOption, read_settings
from client.cli.output import print_text

if TYPE_CHECKING:
    from cache_server.services.invariants import Report
    from cache_server.settings import Settings

DataDir = Annotated[Path | None, PathOption(help="Folder of store and database. [default: $XDG_DATA_HOME/neff-cache]")]
Store = Annotated[str | None, typer.Option(help="Object store. [default: in the data folder]")]
DatabaseUrl = Annotated[str | None, typer.Option(help="SQLAlchemy URL. [default: SQLite in the data folder]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fsck(
    *,
    data_dir: DataDir = None,
    store: Store = None,
    database: DatabaseUrl = None,
    deep: Annotated[bool, typer.Option(help="Also read every output and compare its digest.")] = False,
    repair: Annotated[bool, typer.Option(help="Repair what can be; with SQLite, the server must be stopped.")] = False,
    as_json: AsJson = False,
) -> None:
    """Walk store and database, and print every invariant that is broken.

    Exit code 0: clean (with --repair: clean now); 1: something is broken. Beside a running server it reads only.
    """
    settings = settings_of("fsck", data_dir, store, database)
    from cache_server import maintenance  # noqa: PLC0415 - the base install has no database

    before, after = None, None
    if repair:
        before, after = maintenance.repair(settings, deep=deep)
    else:
        after = maintenance.check(settings, deep=deep)
    if as_json:
        value = after.to_json()
        if before is not None:
            value["repaired"] = [str(finding) for finding in before.findings if finding not in after.findings]
        typer.echo(json.dumps(value, indent=1))
    else:
        _print(before, after)
    raise typer.Exit(0 if after.is_clean else 1)


def _print(before: Report | None, after: Report) -> None:
    for finding in before.findings if before is not None else ():
        if finding not in after.findings:
            print_text(f"repaired  {finding}")
    for finding in after.findings:
        print_text(f"broken    {finding}")
    print_text(
        f"{after.entries} entries, {after.files} files, {after.stored_bytes / 1e6:,.1f} MB; "
        f"{after.pending} uploads not published yet, {after.quarantined} set aside; "
        + ("clean" if after.is_clean else f"{len(after.findings)} broken")
    )


def rebuild_index(
    *,
    data_dir: DataDir = None,
    store: Store = None,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make the database anew from the store: entries, pins, quotas, rules, tokens. Collection waits to be turned on.

    With SQLite, stop the server and move a damaged database out of the way first. What is there already stays.
    """
    settings = settings_of("rebuild-index", data_dir, store, database)
    from cache_server import maintenance  # noqa: PLC0415

    done = maintenance.rebuild(settings)
    if as_json:
        typer.echo(json.dumps(done.to_json(), indent=1))
    else:
        print_text(
            f"{done.adopted} entries indexed, {done.known} known before, {done.set_aside} set aside as unusable, "
            f"{done.unreadable} not readable, {done.gone} gone from the store; "
            f"{done.policy_rows} rows of policy restored"
        )
    raise typer.Exit(1 if done.unreadable else 0)


def settings_of(command: str, data_dir: Path | None, store: str | None, database: str | None) -> Settings:
    """Return the settings of an ``admin`` command that works on store and database, and set up its log."""
    settings = read_settings(f"admin {command}", {"data_dir": data_dir, "store": store, "database": database})
    from cache_server import logging  # noqa: PLC0415 - the base install has no structlog

    logging.configure(settings)
    return settings
