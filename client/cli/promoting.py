"""``neff-cache promote``: let a plan's entries into another project of a server, with a signed record of each."""

import datetime as dt
import getpass
import socket
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from client.cli.group import Exit
from client.cli.opening import Here
from client.cli.options import JsonFlag, Url
from client.cli.output import Bar, print_json, print_table, say
from client.cli.planning import PlanName, open_plan
from client.errors import ConfigurationError
from client.names import check_project
from client.plans import Wanted
from client.server_calls import Promoted
from client.signing.keys import PrivateKey
from client.signing.statements import MAX_BY, Promotion
from client.wire import Entry


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(promote)


def promote(
    plan: PlanName,
    *,
    source: Annotated[str, typer.Option("--from", help="Project that the entries are in.", metavar="PROJECT")],
    target: Annotated[str, typer.Option("--to", help="Project that they are let into.", metavar="PROJECT")],
    key: Annotated[
        Path | None, typer.Option("--key", help="Key that signs the records, in place of NEURON_CACHE_SIGNING_KEY.")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Who lets them in; by default user@host.")] = None,
    url: Url = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy a plan's entries from one project of a server to another, each with a record that you sign.

    Needs read on the one and write on the other. An entry that stands there already is left alone. Ends with 1 if one
    is missing, or was refused: damaged, or not signed as the target asks. The others are promoted all the same.
    """
    here = Here.open(url, check_project(source))
    if check_project(target) == source:
        raise ConfigurationError("an entry is promoted to another project: --from and --to are the same")
    wanted = [each for each in open_plan(here, plan) if each.project == source]
    file = key or here.settings.signing_key
    if file is None:
        raise ConfigurationError("promotions are signed: set NEURON_CACHE_SIGNING_KEY, or give --key")
    signing = PrivateKey.load(file)
    who = (by or f"{getpass.getuser()}@{socket.gethostname()}")[:MAX_BY]
    results: list[tuple[Wanted, Promoted]] = []
    with here.source() as entries, here.calls(target) as calls, Bar("promoting") as bar:
        if calls is None:
            raise ConfigurationError(f"{here.url} is no cache server: projects with rights of their own need one")
        found = {
            (entry.kind, entry.key): entry
            for begin in range(0, len(wanted), entries.batch)
            for entry in entries.find(wanted[begin : begin + entries.batch])
        }
        bar.total(len(wanted), 0)
        for each in wanted:
            entry = found.get(each.name)
            if entry is None:
                results.append((each, Promoted("refused", "absent", f"there is no such entry in {source}")))
            elif here.check is not None and not here.check.admits(entry, here.url):
                results.append((each, Promoted("refused", "signature_invalid", "nobody who is trusted signed it")))
            else:
                results.append((each, calls.promote(_record(entry, target, who, signing))))
            bar.done(1, 0)
    _tell(results, source, target, as_json=as_json)
    if any(result.state == "refused" for _, result in results):
        raise typer.Exit(Exit.NO)


def _record(entry: Entry, target: str, who: str, key: PrivateKey) -> Promotion:
    time = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Promotion.of(entry, target, by=who, time=time).signed(key)


def _tell(results: list[tuple[Wanted, Promoted]], source: str, target: str, *, as_json: bool) -> None:
    if as_json:
        value: list[dict[str, Any]] = [
            {"kind": each.kind.value, "key": each.key, **result._asdict()} for each, result in results
        ]
        print_json({"from": source, "to": target, "results": value})
        return
    refused = [(each, result) for each, result in results if result.state == "refused"]
    if refused:
        rows = ((str(each), result.name, result.detail) for each, result in refused)
        print_table(("refused", "output", "why"), rows)
    counts = Counter(result.state for _, result in results)
    say(
        f"{counts['promoted']} promoted from {source} to {target}, {counts['present']} were there already,"
        f" {counts['refused']} refused"
    )
