"""Commands that work on plans: ``pull`` and ``check``."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from client.cli.group import Exit
from client.cli.opening import Here
from client.cli.options import DEFAULT_JOBS, Jobs, JsonFlag, Project, Url
from client.cli.output import Bar, print_json, print_table, say
from client.plans import Wanted, by_project, find_plan
from client.pulling import Pulled, Puller, missing
from client.sizes import seconds_text, size_text

PlanName = Annotated[
    str,
    typer.Argument(
        metavar="PLAN",
        help="File that NEURON_CACHE_RECORD wrote, - for standard input, or the name of a plan the server keeps.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (pull, check):
        app.command()(command)


def open_plan(here: Here, text: str) -> list[Wanted]:
    """Return the entries of the plan that the command line names."""
    with here.calls() as calls:
        return find_plan(text, Path(text), here.settings.project, None if calls is None else calls.plan)


def pull(
    plan: PlanName, *, jobs: Jobs = DEFAULT_JOBS, url: Url = None, project: Project = None, as_json: JsonFlag = False
) -> None:
    """Fill this machine's node tier with a plan's entries, so that a job finds all of them on its disk.

    In few requests, in parallel, every byte verified. What is here already is left alone: interrupted, run it again.
    Ends with 1 and the list if the shared cache lacks entries; the others are pulled all the same.
    """
    here = Here.open(url, project)
    wanted = open_plan(here, plan)
    total = Pulled()
    with Bar("pulling") as bar:
        for name, group in by_project(wanted).items():
            tier = here.tier(name)
            with here.source(name) as source:
                puller = Puller(
                    source,
                    tier,
                    here.evictor(tier),
                    max_bytes=here.settings.node_max_bytes,
                    jobs=jobs,
                    progress=bar,
                )
                total.add(puller.pull(group))
    if as_json:
        print_json(
            {
                "entries": len(wanted),
                "present": total.present,
                "pulled": total.pulled,
                "bytes": total.bytes,
                "missing": _listed(total.missing),
                "gone": _listed(total.gone),
                "refused": _listed(total.refused),
            }
        )
    else:
        typer.echo(f"{total.pulled} pulled ({size_text(total.bytes)}), {total.present} were here already")
        _tell(total.missing, "missing in the shared cache")
        _tell(total.gone, "damaged or gone in the shared cache")
        _tell(total.refused, "signed by nobody who is trusted")
    if not total.complete:
        raise typer.Exit(Exit.NO)


def check(
    plan: PlanName,
    *,
    node: Annotated[
        bool, typer.Option("--node", help="Check this machine's node tier instead, every byte of it.")
    ] = False,
    jobs: Jobs = DEFAULT_JOBS,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """Tell whether every entry of a plan is there: a gate before a deployment.

    Looks into the shared cache. Ends with 0 if nothing is missing, with 1 and the list if something is, and with 3,
    never with 1, if the shared cache cannot be asked.
    """
    here = Here.open(url, project)
    wanted = open_plan(here, plan)
    absent: list[Wanted] = []
    with ExitStack() as stack:
        bar = stack.enter_context(Bar("checking"))
        for name, group in by_project(wanted).items():
            with here.source(name, node=node) as source:
                absent += missing(source, group, jobs=jobs, progress=bar)
    if as_json:
        print_json({"entries": len(wanted), "missing": _listed(absent)})
    else:
        _tell(absent, "missing")
        if not absent:
            typer.echo(f"all {len(wanted)} entries are there")
    if absent:
        seconds = sum(each.compile_seconds for each in absent)
        say(f"{len(absent)} of {len(wanted)} entries are missing, {seconds_text(seconds)} of compile time")
        raise typer.Exit(Exit.NO)


def _listed(entries: Sequence[Wanted]) -> list[dict[str, str]]:
    return [
        {"project": each.project, "kind": each.kind.value, "key": each.key, "label": each.label} for each in entries
    ]


def _tell(entries: Sequence[Wanted], what: str) -> None:
    rows = [(what, str(each), each.project, each.label or "-") for each in entries]
    if rows:
        print_table(("state", "entry", "project", "label"), rows)
