"""``neff-cache admin check-config``, ``migrate``, ``backup`` and ``gc``: around the life of a server."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from cache_server.command_settings import ConfigFile, read_configured, read_settings
from cache_server.integrity_cli import DatabaseUrl, DataDir, Store  # noqa: TC001 - as above
from client.cli.options import JsonFlag  # noqa: TC001 - as above
from client.cli.output import print_json, print_table, say
from client.shown import shown_address
from client.sizes import size_text

if TYPE_CHECKING:
    from cache_server.settings import Settings

_SECRET = frozenset({"bootstrap_token", "database"})


def check_config(
    *,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    store: Store = None,
    database: DatabaseUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Try the settings that a server would start with: files, store, database, schema, tokens. Nothing stays.

    A bucket has one small object written, read and deleted, a database a row that is rolled back, each step with its
    milliseconds. Prints each setting that is not the default, with its source, and what each part said. Exit status 1
    if a server could not start so.
    """
    given = {"data_dir": data_dir, "store": store, "database": database}
    settings, sources = read_configured("admin check-config", given, config)
    from cache_server.checking import check_settings  # noqa: PLC0415 - the base install has no database
    from cache_server.configuration import made_up, unread  # noqa: PLC0415

    shown = {name: "(secret)" if name in _SECRET else _shown(getattr(settings, name)) for name in sorted(sources)}
    findings, ignored = check_settings(settings), made_up(os.environ)
    unknown = [*unread(os.environ), *([] if ignored is None else [ignored])]
    if as_json:
        print_json(
            {
                "settings": {name: {"value": value, "source": sources[name]} for name, value in shown.items()},
                "parts": {finding.part: {"state": finding.state, "said": finding.said} for finding in findings},
                "warnings": unknown,
            }
        )
    else:
        print_table(("setting", "value", "from"), [(name, value, sources[name]) for name, value in shown.items()])
        print_table(("part", "", "says"), [(finding.part, finding.state, finding.said) for finding in findings])
        for sentence in unknown:
            say(sentence)
    raise typer.Exit(1 if any(finding.state == "failed" for finding in findings) else 0)


def migrate(
    *, config: ConfigFile = None, data_dir: DataDir = None, database: DatabaseUrl = None, as_json: JsonFlag = False
) -> None:
    """Bring the database to this version's schema, one command at a time among all that try.

    On PostgreSQL servers of the version before go on meanwhile; with SQLite, stop the server first.
    """
    settings = _settings("migrate", config, data_dir, None, database)
    from cache_server import maintenance  # noqa: PLC0415 - the base install has no database

    before, after = maintenance.upgrade(settings)
    if as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        say(f"the schema is up to date: {after}")
    else:
        say(f"the schema is {after} now; it was {before or 'empty'}")


def backup(
    file: Annotated[Path, typer.Argument(help="File to write; it must not be there yet.")],
    *,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    database: DatabaseUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the SQLite database to a file, also while its server runs. For PostgreSQL use pg_dump."""
    settings = _settings("backup", config, data_dir, None, database)
    from cache_server.backup import back_up  # noqa: PLC0415 - the base install has no database

    size = back_up(settings, file)
    if as_json:
        print_json({"file": str(file), "bytes": size})
    else:
        say(f"{file}: {size_text(size)}")


def gc(
    *,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    store: Store = None,
    database: DatabaseUrl = None,
    as_json: JsonFlag = False,
) -> None:
    """Sweep and collect once, without a server: for a job that a scheduler starts. For ever: `serve --role collector`.

    With servers on PostgreSQL and a bucket it runs beside them; with SQLite or a folder, stop the server first. Exit
    status 1 if collection is paused, or another one runs.
    """
    settings = _settings("gc", config, data_dir, store, database)
    from cache_server import maintenance  # noqa: PLC0415 - the base install has no database

    swept, outcome = maintenance.collect_once(settings)
    value = outcome.to_json()
    if as_json:
        print_json({"swept": swept, **value})
    else:
        amount = f"{value['entries']} entries, {size_text(value['bytes'])}"
        say(f"{swept} left-over outputs removed; collection is {outcome.state}: {amount}, {outcome.spared} spared")
    raise typer.Exit(0 if outcome.state == "done" else 1)


def _shown(value: object) -> str:
    # an address may hold a key although it should not
    return shown_address(value) if isinstance(value, str) else str(value)


def _settings(
    command: str, config: Path | None, data_dir: Path | None, store: str | None, database: str | None
) -> Settings:
    given = {"data_dir": data_dir, "store": store, "database": database}
    settings = read_settings(f"admin {command}", given, config)
    from cache_server import logging  # noqa: PLC0415 - the base install has no structlog

    logging.configure(settings)
    return settings
