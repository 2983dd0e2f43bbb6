"""``neff-cache bundle``: a plan's entries in one checked file, for sites that no server reaches."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client import bundles
from client.cli.group import Exit
from client.cli.opening import Here
from client.cli.options import JsonFlag, Project, Url
from client.cli.output import Bar, print_json, print_text, say
from client.cli.planning import PlanName, open_plan
from client.names import MAIN_OUTPUT, check_project
from client.plans import by_project
from client.pulling import check_room
from client.signing.trust import TrustList
from client.signing.verdicts import Verdicts
from client.sizes import size_text
from client.wire import Entry

if TYPE_CHECKING:
    from client.transports.base import Transport

bundle_app = typer.Typer(
    help="Move a plan's entries as one checked file, to sites that no server reaches.", no_args_is_help=True
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The bundle.")]
MaxBytes = Annotated[
    int, typer.Option("--max-bytes", help="Refuse a bundle that announces more bytes than this.", min=0)
]
TrustedKeys = Annotated[
    Path | None,
    typer.Option("--trusted-keys", help="List of keys, one of which must vouch for each entry.", metavar="FILE"),
]
_MAX_SHOWN = 20


class Target(StrEnum):
    """Where a bundle's entries go."""

    NODE = "node"
    SHARED = "shared"


@bundle_app.command("export")
def export(
    plan: PlanName,
    file: File,
    *,
    node: Annotated[
        bool,
        typer.Option("--node", help="Take the programs of this machine's node tier, not the shared cache's entries."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the entries of a plan into one file. Equal entries make equal files, byte for byte.

    Ends with 1 and the list if entries are missing; nothing is written then.
    """
    here = Here.open(url, project)
    wanted = open_plan(here, plan)
    absent = []
    parts = []
    with ExitStack() as stack:
        bar = stack.enter_context(Bar("exporting"))
        for name, group in by_project(wanted).items():
            source = stack.enter_context(here.source(name, node=node))
            found = [
                entry
                for begin in range(0, len(group), source.batch)
                for entry in source.find(group[begin : begin + source.batch])
            ]
            names = {(entry.kind, entry.key) for entry in found}
            absent += [each for each in group if each.name not in names]
            parts.append((source, found))
        if not absent:
            manifest = bundles.export(file, parts, bar, force=force)
    if absent:
        if as_json:
            print_json({"missing": [str(each) for each in absent]})
        else:
            for each in absent:
                print_text(f"missing\t{each}")
        say(f"{len(absent)} of {len(wanted)} entries are missing: nothing was written")
        raise typer.Exit(Exit.NO)
    digest = _digest(file)
    stored = file.stat().st_size
    if as_json:
        value = {"file": str(file), "sha256": digest, "bytes": stored, "entries": manifest.entries}
        print_json({**value, "plain_bytes": manifest.size})
    else:
        print_text(f"{file}: {manifest.entries} entries, {size_text(stored)}, sha256 {digest}")


@bundle_app.command("verify")
def verify(
    file: File,
    *,
    trusted_keys: TrustedKeys = None,
    project: Annotated[
        str | None,
        typer.Option("--project", help="Judge the keys as for this project, not for the entries' own.", metavar="NAME"),
    ] = None,
    max_bytes: MaxBytes = bundles.MAX_BYTES,
    as_json: JsonFlag = False,
) -> None:
    """Check every digest, size and name in a bundle, and that nothing else is in it. Ends with 1 if it is not sound.

    Digests show damage, not origin. With --trusted-keys every entry's signature is checked too, offline. Without it
    compare the printed digest with the one that `export` printed.
    """
    verdicts = None if trusted_keys is None else Verdicts(TrustList.load(trusted_keys), project)
    with Bar("verifying") as bar:
        manifest = bundles.verify(file, max_bytes=max_bytes, progress=bar, each=verdicts or (lambda _: None))
    digest = _digest(file)
    if as_json:
        value = {"file": str(file), "sha256": digest, "entries": manifest.entries, "plain_bytes": manifest.size}
        print_json(value if verdicts is None else {**value, **verdicts.to_json()})
    else:
        print_text(f"{file}: sound, {manifest.entries} entries, {size_text(manifest.size)} plain, sha256 {digest}")
        if verdicts is not None:
            for line in verdicts.lines():
                print_text(line)
    if verdicts is not None and verdicts.refused:
        say(f"{len(verdicts.refused)} of {manifest.entries} entries are vouched for by nobody in {trusted_keys}")
        raise typer.Exit(Exit.NO)


@bundle_app.command("import")
def import_(
    file: File,
    *,
    to: Annotated[
        Target, typer.Option("--to", help="Into this machine's node tier, or the shared cache.")
    ] = Target.NODE,
    trusted_keys: TrustedKeys = None,
    max_bytes: MaxBytes = bundles.MAX_BYTES,
    url: Url = None,
    project: Annotated[
        str | None,
        typer.Option("--project", help="Store all entries in this project, not in their own.", metavar="NAME"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Store a bundle's entries. The whole bundle is verified first: a damaged one leaves nothing behind.

    With --trusted-keys, or NEURON_CACHE_SIGNATURES=require, so does one with an entry that nobody vouches for. Without,
    only import bundles of people whom you would let run code in your jobs.
    """
    here = Here.open(url, project)
    if project is not None:
        check_project(project)
    verdicts = _verdicts(here, trusted_keys, project)
    with Bar("verifying") as bar:
        manifest = bundles.verify(file, max_bytes=max_bytes, progress=bar, each=verdicts or (lambda _: None))
    if verdicts is not None and verdicts.refused:
        shown = "; ".join(verdicts.refused[:_MAX_SHOWN])
        raise bundles.BundleError(f"the bundle {file} is refused, nothing was stored: {shown}")
    if to is Target.NODE:
        tier = here.tier()
        tier.tree.claim()
        check_room(tier, manifest.size, here.settings.node_max_bytes)
    counts = Counter[_Outcome]()
    skipped: list[str] = []
    with ExitStack() as stack:
        bar = stack.enter_context(Bar("importing"))
        store = _into_node(here) if to is Target.NODE else _into_shared(here, stack)
        for entry, outputs in bundles.read(file, max_bytes=max_bytes, progress=bar):
            outcome = store(entry if project is None else replace(entry, project=project), outputs)
            counts[outcome] += 1
            if outcome is _Outcome.SKIPPED:
                skipped.append(f"{entry.kind.value}/{entry.key}")
    stored, present = counts[_Outcome.STORED], counts[_Outcome.PRESENT]
    if as_json:
        print_json({"stored": stored, "present": present, "skipped": skipped})
    else:
        print_text(f"{stored} stored, {present} were there already")
    if skipped:
        lack = "a program" if to is Target.NODE else "a key document, without which nothing is published"
        say(f"{len(skipped)} entries lack {lack}: {', '.join(skipped[:_MAX_SHOWN])}")
        raise typer.Exit(Exit.NO)


def _verdicts(here: Here, trusted_keys: Path | None, project: str | None) -> Verdicts | None:
    """Return what judges the entries of a bundle, if anything was asked to."""
    if trusted_keys is not None:
        return Verdicts(TrustList.load(trusted_keys), project)
    if here.settings.signature_mode != "require":
        return None
    path = here.settings.trusted_keys
    return Verdicts(TrustList() if path is None else TrustList.load(path), project)


class _Outcome(StrEnum):
    STORED = "stored"
    PRESENT = "present"
    SKIPPED = "skipped"


def _into_node(here: Here) -> Callable[[Entry, Mapping[str, bytes]], _Outcome]:
    def store(entry: Entry, outputs: Mapping[str, bytes]) -> _Outcome:
        neff = outputs.get(MAIN_OUTPUT)
        if neff is None:
            return _Outcome.SKIPPED
        tier = here.tier(entry.project)
        if not tier.put(entry, neff):
            return _Outcome.PRESENT
        here.evictor(tier).written(len(neff))
        return _Outcome.STORED

    return store


def _into_shared(here: Here, stack: ExitStack) -> Callable[[Entry, Mapping[str, bytes]], _Outcome]:
    transports: dict[str, Transport] = {}

    def store(entry: Entry, outputs: Mapping[str, bytes]) -> _Outcome:
        if entry.key_document is None:
            return _Outcome.SKIPPED
        if entry.project not in transports:
            transports[entry.project] = stack.enter_context(here.transport(entry.project))
        published = transports[entry.project].publish(entry, outputs, None)
        return _Outcome.STORED if published.created else _Outcome.PRESENT

    return store


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
