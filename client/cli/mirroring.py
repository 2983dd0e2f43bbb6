"""``import`` and ``export``: the caches of other programs, and the shared cache."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.cli.group import Exit
from client.cli.opening import Here
from client.cli.options import DEFAULT_JOBS, Jobs, JsonFlag, Project, Url
from client.cli.output import Bar, print_json, print_table, say
from client.cli.planning import PlanName, open_plan
from client.errors import ConfigurationError
from client.foreign.host import this_host
from client.foreign.names import ForeignName
from client.foreign.outcome import Outcome
from client.foreign.pulling import Puller
from client.foreign.pushing import Pusher
from client.foreign.scan import LeftOut, Why
from client.foreign.shared import SharedForeign
from client.foreign.table import LAYOUTS, guess, layout_called
from client.foreign.tree import FolderTree, Tree
from client.foreign.writing import Writer
from client.names import Kind
from client.sizes import size_text

if TYPE_CHECKING:
    from client.signing.signer import Signer

_LABELS = "|".join(LAYOUTS)
_MAX_SHOWN = 20

LayoutName = Annotated[
    str, typer.Option("--layout", metavar=_LABELS, help="Whose cache it is; see docs/foreign.md.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be done, and do nothing.")]
AnyOwner = Annotated[
    bool,
    typer.Option(
        "--any-owner",
        help="Take files of other users too: whoever can write there can then run code in jobs.",
    ),
]
Version = Annotated[
    str | None,
    typer.Option("--compiler-version", metavar="VERSION", help="The compiler, in place of this host's neuronx-cc."),
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="The target, in place of this host's: trn1, inf2, trn2 …")
]
After = Annotated[
    str | None,
    typer.Option(
        "--compiled-after",
        metavar="TIME",
        help="Take only files from that time on for this compiler's, in place of its installation's; `any` takes all.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("import")(import_)
    app.command("export")(export)


def import_(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The other cache's root: a directory, or s3://…")],
    *,
    layout: Annotated[
        str | None,
        typer.Option("--layout", metavar=_LABELS, help="Whose cache it is; by default what the names in it look like."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Write the entries that are in the shared cache now as a plan."),
    ] = None,
    dry_run: DryRun = False,
    any_owner: AnyOwner = False,
    compiler_version: Version = None,
    target: Target = None,
    compiled_after: After = None,
    jobs: Jobs = DEFAULT_JOBS,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """Bring the entries of another program's cache into the shared cache, by that cache's own keys.

    Failed and locked entries, and files that are not of the layout, are left out and listed. What is in the shared
    cache already is not sent again: interrupted, run it again. Ends with 1 if a program is damaged.
    """
    here = Here.open(url, project)
    host = this_host(here.environ, version=compiler_version, target=target, compiled_after=compiled_after)
    with _tree(source, any_owner=any_owner) as tree, shared_foreign(here) as shared, Bar("importing") as bar:
        listed = list(tree.files())
        chosen = guess((file.path for file in listed), tree.address) if layout is None else layout_called(layout)
        pusher = Pusher(
            tree,
            chosen,
            shared,
            host,
            signer=signer_of(here),
            label=here.settings.label,
            jobs=jobs,
            dry_run=dry_run,
            progress=bar,
        )
        outcome = pusher.push(listed)
    if plan is not None and not dry_run:
        _write_plan(plan, here.settings.project, outcome)
    _report(outcome, "would be imported" if dry_run else "imported", as_json=as_json)


def export(
    plan: PlanName,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The other cache's root; made if it is not there.")],
    *,
    layout: LayoutName,
    dry_run: DryRun = False,
    jobs: Jobs = DEFAULT_JOBS,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the foreign entries of a plan into a directory, as the cache that they come from would have.

    Nothing that stands there is replaced, and jobs may use the directory meanwhile. Entries of other kinds and layouts
    are left out and listed. Ends with 1 if entries are missing or damaged; the others are written all the same.
    """
    here = Here.open(url, project)
    chosen = layout_called(layout)
    wanted = open_plan(here, plan)
    outcome = Outcome()
    outcome.left_out += [
        LeftOut(Why.UNKNOWN, str(each), "not from another cache") for each in wanted if each.kind is not Kind.FOREIGN
    ]
    keys: dict[str, list[str]] = {}
    for each in wanted:
        if each.kind is Kind.FOREIGN:
            keys.setdefault(each.project, []).append(each.key)
    with Bar("exporting") as bar:
        for name, group in keys.items():
            with shared_foreign(here, name) as shared:
                found = shared.find(group)
                if len(found) < len(group):
                    shared.check_readable()
                outcome.left_out += [LeftOut(Why.MISSING, f"foreign/{key}") for key in group if key not in found]
                writer = Writer(directory.absolute(), chosen)
                puller = Puller(shared, chosen, writer, check=here.check, jobs=jobs, dry_run=dry_run, progress=bar)
                outcome.add(puller.pull(found.values()))
    _report(outcome, "would be exported" if dry_run else "exported", as_json=as_json)


@contextmanager
def _tree(source: str, *, any_owner: bool) -> Iterator[Tree]:
    tree: Tree
    if source.startswith("s3://"):
        from client.foreign.bucket_tree import BucketTree  # noqa: PLC0415 - only a bucket needs it

        tree = BucketTree(source)
    elif "://" in source:
        raise ConfigurationError(f"{source!r} is no cache's root: expected a directory, or s3://bucket/prefix")
    else:
        tree = FolderTree(Path(source).expanduser().absolute(), any_owner=any_owner)
    with closing(tree):
        yield tree


@contextmanager
def shared_foreign(here: Here, project: str | None = None) -> Iterator[SharedForeign]:
    """Open the shared cache for foreign entries."""
    name = project or here.settings.project
    with closing(SharedForeign(here.url, name, here.environ, folder=here.shared_folder)) as shared:
        yield shared


def signer_of(here: Here) -> "Signer | None":
    """Return what signs by the settings; raises `ConfigurationError` if nobody here would believe what is pushed."""
    signer = here.signer()
    if signer is None and here.settings.signature_mode == "require":
        raise ConfigurationError(
            "NEURON_CACHE_SIGNATURES=require, and nothing signs what is brought in: set NEURON_CACHE_SIGNING_KEY"
        )
    return signer


def _write_plan(path: Path, project: str, outcome: Outcome) -> None:
    names = sorted({*outcome.moved, *outcome.present})
    try:
        path.write_text("".join(_plan_line(project, name) for name in names))
    except OSError as error:
        raise ConfigurationError(f"the plan {path} cannot be written: {error.strerror}") from error


def _plan_line(project: str, name: ForeignName) -> str:
    value = {
        "schema": 1,
        "project": project,
        "kind": Kind.FOREIGN.value,
        "key": name.key,
        "label": name.name,
        "compile_seconds": 0,
    }
    return json.dumps(value) + "\n"


def _report(outcome: Outcome, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome.to_json(done.rpartition(" ")[2]))
    else:
        print_outcome(outcome, done)
    if not outcome.is_whole:
        raise typer.Exit(Exit.NO)


def print_outcome(outcome: Outcome, done: str) -> None:
    """Print the counts, then what was left out."""
    here = f", {len(outcome.differing)} of them another build" if outcome.differing else ""
    rows = [
        (done, str(len(outcome.moved)), size_text(outcome.bytes)),
        ("there already", str(len(outcome.present)), here.removeprefix(", ")),
        *((str(why), str(count), "left out") for why, count in sorted(outcome.counts.items())),
    ]
    print_table(("what", "entries", "note"), rows)
    shown = Counter[Why]()
    for each in outcome.left_out:
        shown[each.why] += 1
        if shown[each.why] <= _MAX_SHOWN:
            say(sentence(each))
    for why, count in sorted(shown.items()):
        if count > _MAX_SHOWN:
            say(f"left out, {why}: {count - _MAX_SHOWN} more; --json lists all")


def sentence(each: LeftOut) -> str:
    """Return what people are told about something that was left out."""
    return f"left out, {each.why}: {each.what}" + (f" ({each.text})" if each.text else "")
