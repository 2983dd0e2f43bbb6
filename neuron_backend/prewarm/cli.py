"""``neff-cache prewarm``: compile and publish what a job will ask for, before there is a job."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.buckets import Shape, parse_shapes
from client.cli.group import Exit
from client.cli.opening import Here
from client.cli.options import JsonFlag, Project, Url  # noqa: TC001 - typer reads annotations at run time
from client.cli.output import Bar, print_json, print_table, say
from client.environment import TARGET
from client.errors import ConfigurationError
from client.names import Kind
from client.plans import write_plan
from client.sizes import seconds_text

if TYPE_CHECKING:
    from neuron_backend.prewarm.entry_point import Prepared
    from neuron_backend.prewarm.report import Bucket, Report

prewarm_app = typer.Typer(add_completion=False)


@prewarm_app.command()
def prewarm(
    entry_point: Annotated[
        str,
        typer.Argument(
            metavar="ENTRY",
            help="package.module:function or file.py:function; it returns (module or function, inputs): a list of "
            "tuples, one a bucket, or a function that makes such a tuple from a shape.",
        ),
    ],
    *,
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes", help="Buckets: 64,128 or 8x64,8x128, a file of these or of `plan shapes`, - for standard input."
        ),
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", help="The backward graphs too.")] = False,
    as_is: Annotated[
        bool,
        typer.Option(
            "--as-is", help="Call the function as it stands, gradients on: a training step with loss and optimizer."
        ),
    ] = False,
    meta: Annotated[
        bool, typer.Option("--meta", help="Make the entry point's tensors on meta: no weights are loaded or drawn.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option("--target", help=f"Compile for this chip (trn1, trn2 …), which need not be here: {TARGET}."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan", help="Write the entries to this file: a plan for check, pull and bundles.", dir_okay=False
        ),
    ] = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Find the keys; compile and publish nothing.")] = False,
    allow_fallback: Annotated[
        bool, typer.Option("--allow-fallback", help="Do not mind graphs that cannot be compiled whole.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Compiles at once, within the node's slots and memory.", min=1)
    ] = None,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile and publish all programs that a job will ask for, without a device and without weights.

    The entry point is captured by the way a job takes, once for each bucket, with tensors that have shapes and no
    values; the keys are those of the job. What is in the cache already is left alone: interrupted, run it again. Ends
    with 1 if a graph cannot be compiled whole, if a compile fails or if something could not be published.
    """
    here = Here.open(url, project)
    environ = _for_target(dict(here.environ), target)
    # what is read from the environment while a graph is captured is read from this process's
    os.environ.update(environ)
    report = _prewarm(
        entry_point,
        _shapes(shapes),
        environ,
        backward=backward,
        as_is=as_is,
        meta=meta,
        compile=not keys_only,
        jobs=jobs,
    )
    captured = all(bucket.error is None for bucket in report.buckets)
    if plan is not None and captured:
        write_plan(plan, report.plan())
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    for note in report.notes:
        say(note)
    if plan is not None and not captured:
        say(f"{plan} was not written: it would lack what the failed buckets need")
    if not (report.complete or (allow_fallback and report.complete_but_for_fallback)):
        raise typer.Exit(Exit.NO)


def _for_target(environ: dict[str, str], target: str | None) -> dict[str, str]:
    """Return the environment with the target in it; raises `ConfigurationError` where it cannot be compiled for."""
    if target is None:
        return environ
    from neuron_backend.compilers import SETTING  # noqa: PLC0415 - imports no torch, but only this needs it

    if environ.get(SETTING, "").strip() not in ("", "neuronx-cc"):
        raise ConfigurationError(
            f"--target {target} needs neuronx-cc, and {SETTING}={environ[SETTING]}: the stand-in compiles for the CPU "
            "of this host and no other; leave out --target, or that setting"
        )
    return {**environ, TARGET: target, SETTING: "neuronx-cc"}


def _shapes(text: str | None) -> list[Shape]:
    if text is None:
        return []
    if text == "-":
        return parse_shapes(sys.stdin.read(), "standard input")
    path = Path(text)
    try:
        return (
            parse_shapes(path.read_text(encoding="utf-8"), text) if path.is_file() else parse_shapes(text, "--shapes")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the shapes in {text} cannot be read: {error}") from error


def _prewarm(entry_point: str, shapes: list[Shape], environ: dict[str, str], *, meta: bool, **how: Any) -> Report:
    """Load torch and the entry point, and prewarm with a bar on the terminal."""
    try:
        import torch  # noqa: PLC0415 - seconds; every other command does without
    except ImportError as error:
        raise ConfigurationError("prewarm needs torch: run `pip install torch 'neff-cache[torch]'`") from error
    from neuron_backend import _autoload  # noqa: PLC0415

    if not _autoload.state.registered:
        raise ConfigurationError(f"prewarm has no device to capture for: {_autoload.state.reason}")
    from neuron_backend.prewarm import entry_point as entry  # noqa: PLC0415 - only now is torch known to be there
    from neuron_backend.prewarm.compile_only import compile_only  # noqa: PLC0415

    with torch.device("meta") if meta else nullcontext():
        prepared: Prepared = entry.prepare(entry.find(entry_point), entry_point, shapes)
    with Bar("compiling") as bar, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="operator .* runs on the CPU")  # the table says it
        return compile_only(
            prepared.target, prepared.buckets, labels=prepared.labels, environ=environ, progress=bar, **how
        )


def _show(report: Report) -> None:
    print_table(
        ("bucket", "graphs", "eager", "hits", "compiled", "failed", "capture", "compile", ""),
        [_row(report, bucket) for bucket in report.buckets],
    )
    for bucket in report.buckets:
        for error in bucket.unsupported:
            say(f"bucket {bucket.label}: {error}")
        if bucket.fallback:
            say(f"bucket {bucket.label}: on the CPU: {', '.join(bucket.fallback)}")
    for program in report.failures:
        say(f"{program.kind}/{program.key[:12]} was not compiled: {program.error}")
    if report.unpublished:
        say(f"{len(report.unpublished)} of {len(report.programs)} programs could not be published")
    if report.compiled:
        where = "" if report.shared else " on this node only (NEURON_CACHE_URL is not set)"
        found = len(report.programs) - report.count("compiled") - len(report.failures)
        typer.echo(
            f"{len(report.programs)} programs{where}: {report.count('compiled')} compiled, {found} were there already, "
            f"{seconds_text(sum(program.compile_seconds for program in report.programs.values()))} of compile time"
        )
    else:
        typer.echo(f"{len(report.programs)} programs, none of them compiled")


def _row(report: Report, bucket: Bucket) -> tuple[str, ...]:
    programs = [report.programs[name] for name in bucket.programs]
    graphs = sum(program.kind is Kind.GRAPH for program in programs)
    compiled = sum(program.where == "compiled" for program in programs)
    failed = sum(program.error is not None for program in programs)
    hits = sum(program.where not in ("", "compiled") for program in programs)
    seconds = sum(program.compile_seconds for program in programs)
    trouble = bucket.error or ("runs operator by operator" if bucket.unsupported else "")
    counts = (graphs, len(programs) - graphs, hits, compiled, failed)
    return (bucket.label, *map(str, counts), seconds_text(bucket.seconds), seconds_text(seconds), trouble)
