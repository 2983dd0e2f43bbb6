"""``sync``: another program's cache directory and the shared cache, kept in step."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from client.cli.group import Exit
from client.cli.mirroring import (
    After,
    AnyOwner,
    DryRun,
    LayoutName,
    Target,
    Version,
    print_outcome,
    sentence,
    shared_foreign,
    signer_of,
)
from client.cli.opening import Here
from client.cli.options import DEFAULT_JOBS, Jobs, JsonFlag, Project, Url
from client.cli.output import Bar, print_json, say
from client.errors import Unreachable
from client.foreign.host import Host, this_host
from client.foreign.layout import Layout
from client.foreign.outcome import Outcome
from client.foreign.pulling import Puller
from client.foreign.pushing import Pusher
from client.foreign.scan import LeftOut
from client.foreign.shared import SharedForeign
from client.foreign.table import layout_called
from client.foreign.tree import FolderTree
from client.foreign.watching import INTERVAL_SECONDS, Ending, ending_on_signals, watch
from client.foreign.writing import Writer
from client.pulling import SILENT
from client.sizes import size_text


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(sync)


def sync(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The other cache's root.")],
    *,
    layout: LayoutName,
    pull: Annotated[
        bool, typer.Option("--pull", help="From the shared cache into DIR; so it is if nothing is said.")
    ] = False,
    push: Annotated[bool, typer.Option("--push", help="From DIR into the shared cache.")] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Go on until SIGTERM, through outages of the shared cache.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="How often --watch looks.", min=0.1)
    ] = INTERVAL_SECONDS,
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="End with 0 if the shared cache cannot be reached.")
    ] = False,
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
    """Keep another program's cache directory and the shared cache in step.

    Pulls what was built for this host's compiler version and target. Nothing that stands on either side is replaced,
    and jobs may use the directory meanwhile. With --watch a line is printed when something was done.
    """
    here = Here.open(url, project)
    chosen = layout_called(layout)
    host = this_host(here.environ, version=compiler_version, target=target, compiled_after=compiled_after)
    with shared_foreign(here) as shared, _ending(watching=watching) as ending, Bar("synchronising") as bar:
        steps = _Steps(shared, chosen, host, directory.absolute())
        progress = SILENT if watching else bar
        options = {"jobs": jobs, "dry_run": dry_run, "progress": progress, "stop": ending.now}
        if pull or not push:
            writer = Writer(steps.directory, chosen)
            steps.puller = Puller(shared, chosen, writer, check=here.check, **options)  # type: ignore[arg-type] # each of its own type
        if push:
            tree = FolderTree(steps.directory, any_owner=any_owner)
            more = {"signer": signer_of(here), "label": here.settings.label, "only_own": True, **options}
            steps.pusher = Pusher(tree, chosen, shared, host, **more)  # type: ignore[arg-type] # as above
        steps.check()
        if watching:
            watch(lambda last: steps.run(last=last, as_json=as_json), ending, say, interval=interval)
            return
        try:
            outcomes = list(steps.outcomes())
        except Unreachable as error:
            if not best_effort:
                raise
            say(f"{error}; nothing was done")
            return
    if as_json:
        print_json({done: outcome.to_json(done) for done, outcome in outcomes})
    else:
        for done, outcome in outcomes:
            print_outcome(outcome, f"would be {done}" if dry_run else done)
    if not all(outcome.is_whole for _, outcome in outcomes):
        raise typer.Exit(Exit.NO)


@dataclass
class _Steps:
    """What `sync` does, once or again and again."""

    shared: SharedForeign
    layout: Layout
    host: Host
    directory: Path
    puller: Puller | None = None
    pusher: Pusher | None = None
    _told: set[LeftOut] = field(default_factory=set)

    def check(self) -> None:
        """Raise `ConfigurationError` at once for what no waiting would mend."""
        if self.puller is not None or self.pusher is not None:
            self.host.require_version()
            self.host.require_target()
        if self.pusher is not None and not self.layout.names_compiler:
            self.host.require_since()

    def outcomes(self, *, last: bool = False) -> Iterator[tuple[str, Outcome]]:
        """Do it once; the ``last`` time nothing is pulled any more."""
        if self.puller is not None and not last:
            version, target = self.host.require_version(), self.host.require_target()
            yield "pulled", self.puller.pull(self.shared.built_by(self.layout.kept_as, version, target))
        if self.pusher is not None and self.directory.exists():
            yield "pushed", self.pusher.push()

    def run(self, *, last: bool, as_json: bool) -> None:
        """Do it once, and print a line for what was done, and one for each thing left out that is new."""
        for done, outcome in self.outcomes(last=last):
            new = [each for each in outcome.left_out if each not in self._told]
            self._told.update(new)
            if as_json and (outcome.moved or new):
                value = {"done": done, **outcome.to_json(done)}
                value["left_out"] = [{"why": str(each.why), "what": each.what, "text": each.text} for each in new]
                typer.echo(json.dumps(value))
            elif not as_json:
                if outcome.moved:
                    typer.echo(f"{len(outcome.moved)} {done} ({size_text(outcome.bytes)})")
                for each in new:
                    say(sentence(each))


def _ending(*, watching: bool) -> AbstractContextManager[Ending]:
    """Return what SIGTERM ends in an orderly way where it is to be expected; a single run is interrupted as usual."""
    return ending_on_signals() if watching else closing(Ending())
