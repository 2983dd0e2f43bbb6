"""Commands that keep this machine in order: ``doctor`` and ``gc``."""

from contextlib import suppress
from typing import Annotated

import typer

from client.cli.group import Exit
from client.cli.opening import Here
from client.cli.options import JsonFlag, Url
from client.cli.output import print_json, print_table, say
from client.doctor.base import State, Surroundings
from client.doctor.table import examine, is_healthy
from client.errors import ConfigurationError
from client.listing import node_entries
from client.node.eviction import Evictor
from client.settings import Settings
from client.sizes import size_text


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (doctor, gc):
        app.command()(command)


def doctor(*, url: Url = None, as_json: JsonFlag = False) -> None:
    """Examine what keeps jobs on this machine from using the cache, and say what to do about it.

    Run it as the job's user, in the job's folder and environment. Ends with 1 if there is a problem.
    """
    lines = list(examine(Surroundings.here(url)))
    if as_json:
        print_json([{"check": line.name, **line.finding.to_json()} for line in lines])
    else:
        rows = []
        for name, finding in lines:
            advice = f" -> {finding.advice}" if finding.advice else ""
            rows.append((str(finding.state), name, f"{finding.text}{advice}"))
        print_table(("state", "check", "finding"), rows)
    if not is_healthy(lines):
        problems = sum(line.finding.state is State.PROBLEM for line in lines)
        say(f"{problems} problem{'s' if problems > 1 else ''} found")
        raise typer.Exit(Exit.NO)


def gc(
    *,
    max_bytes: Annotated[
        str | None,
        typer.Option("--max-bytes", help="Shrink to this size, such as 5GiB, instead of its bound.", metavar="SIZE"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Shrink this machine's node tier to its bounds, least recently used entries first, and remove what is left over.

    Jobs do this by themselves when they add entries; entries that are being read are safe. In a folder that holds what
    neff-cache did not make nothing is done, and the status is 2.
    """
    here = Here.open()
    tier = here.tier()
    with suppress(FileNotFoundError):  # nothing is there yet
        tier.tree.claim(make=False)
    bound = here.settings.node_max_bytes if max_bytes is None else _size(max_bytes)
    before = sum(1 for _ in node_entries(tier))
    freed = Evictor(tier.tree, bound, max_age=here.settings.node_max_age).sweep()
    after = sum(1 for _ in node_entries(tier))
    if as_json:
        print_json({"directory": str(tier.tree.root), "freed_bytes": freed, "removed": before - after, "left": after})
    else:
        typer.echo(f"{size_text(freed)} freed, {before - after} entries of project {tier.project} gone, {after} left")


def _size(text: str) -> int:
    """Read a size as NEURON_CACHE_NODE_MAX_BYTES is read."""
    settings = Settings.from_environment({"NEURON_CACHE_NODE_MAX_BYTES": text, "HOME": "/"})
    if settings.problems:
        raise ConfigurationError(f"--max-bytes {text!r} means nothing: expected a size such as 5GiB")
    return settings.node_max_bytes
