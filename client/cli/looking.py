"""Commands that look at single entries, and take or add one: ``status``, ``ls``, ``show``, ``get``, ``put``."""

import datetime as dt
import hashlib
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from client import neff
from client._version import __version__
from client.cli.group import Exit
from client.cli.opening import Here, Located, locate
from client.cli.options import JsonFlag, Key, Kinds, Project, Url
from client.cli.output import print_json, print_table, say, time_cell
from client.cli.signatures import signature_rows
from client.doctor.base import State, Surroundings, problem
from client.doctor.server import check as check_shared
from client.doctor.walk import Step, walk_to_server
from client.errors import ConfigurationError, FormatError, TransportError
from client.explaining import check_asked
from client.key import key_of
from client.listing import folder_entries, node_entries
from client.names import COMPILE_LOG, MAIN_OUTPUT, Kind, check_kind, check_output
from client.node.tier import DamagedEntryError
from client.node.tree import temporary_beside
from client.server_calls import PROBE_KEY
from client.sizes import seconds_text, size_text
from client.sources import is_server
from client.transports.base import Transport
from client.wire import Entry, Output, Producer


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (status, ls, show, get, put):
        app.command()(command)


def status(*, url: Url = None, project: Project = None, as_json: JsonFlag = False) -> None:
    """Show what is in effect here: settings, what the node tier holds, and the way of a job to the shared cache.

    Each step of that way is shown with its milliseconds: name, connection, answer, token, read, store, publish, lease.
    Nothing is stored. Ends with 3 if a shared cache is named and does not answer, with 1 if a later step fails.
    """
    here = Here.open(url, project)
    settings = here.settings
    counts: Counter[str] = Counter()
    size = 0
    if settings.node_dir is not None:
        for entry in node_entries(here.tier()):
            counts[entry.kind.value] += 1
            size += _size(entry)
    shared: dict[str, Any] | None = None
    steps: list[Step] = []
    if settings.url is not None:
        with here.transport() as transport:
            address = transport.address
        steps = list(_steps(here))
        answer = next((step for step in steps if step.name == "answer" and step.reached), None)
        shared = {
            "address": address,
            "answers": steps[-1].reached,
            "seconds": None if answer is None else round(answer.seconds, 6),
        }
    value = {
        "version": __version__,
        "project": settings.project,
        "mode": settings.mode,
        "node": {
            "directory": None if settings.node_dir is None else str(settings.node_dir),
            "entries": counts.total(),
            "bytes": size,
            "max_bytes": settings.node_max_bytes,
            "by_kind": dict(sorted(counts.items())),
        },
        "shared": shared,
        "way": [{"step": step.name, "seconds": round(step.seconds, 6), **step.finding.to_json()} for step in steps],
    }
    if as_json:
        print_json(value)
    else:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "empty"
        bound = size_text(settings.node_max_bytes)
        shown = "not set: nothing is shared" if shared is None else shared["address"]
        rows = [
            ("version", __version__),
            ("project", settings.project),
            ("mode", settings.mode),
            ("node tier", "none" if settings.node_dir is None else str(settings.node_dir)),
            ("node entries", f"{kinds}; {size_text(size)} of {bound}"),
            ("shared cache", shown),
            *((f"  {step.name}", f"{step.finding.state}, {step.text}") for step in steps),
        ]
        print_table(("", ""), rows)
    failed = [step for step in steps if step.finding.state is State.PROBLEM]
    for step in failed:
        say(f"{step.finding.text} -> {step.finding.advice}")
    if failed:
        raise typer.Exit(Exit.NO if steps[-1].reached else Exit.UNREACHABLE)


def _steps(here: Here) -> Iterator[Step]:
    """Walk a job's way to the shared cache; a folder or a bucket is one step."""
    if is_server(here.url):
        yield from walk_to_server(here.settings, here.environ)
        return
    begin = time.monotonic()
    try:
        with here.transport() as transport:
            transport.entry(Kind.GRAPH, PROBE_KEY)
    except TransportError as error:
        lost = problem(str(error), "jobs go on without it, and compile what others have")
        yield Step("answer", time.monotonic() - begin, lost, reached=False)
        return
    for finding in check_shared(Surroundings(here.environ, here.settings)):
        yield Step("store", time.monotonic() - begin, finding, reached=True)
        begin = time.monotonic()


def ls(
    *,
    kind: Kinds = None,
    shared: Annotated[bool, typer.Option("--shared", help="List the shared folder instead of the node tier.")] = False,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """List the entries of this machine's node tier, or of a shared folder: newest first."""
    here = Here.open(url, project)
    kinds = tuple(kind) if kind else tuple(Kind)
    if shared:
        _ = here.url
        folder = here.shared_folder
        if folder is None:
            raise ConfigurationError(
                "only node tiers and shared folders are listed from here: `neff-cache show KEY` finds an entry of a "
                "server, and `neff-cache admin stats` counts them"
            )
        entries = list(folder_entries(folder, here.settings.project, kinds))
    else:
        entries = list(node_entries(here.tier(), kinds))
    entries.sort(key=lambda entry: (entry.created, entry.key), reverse=True)
    if as_json:
        print_json([entry.to_json() for entry in entries])
        return
    rows = (
        (
            f"{entry.kind.value}/{entry.key}",
            time_cell(entry.created),
            size_text(_size(entry)),
            seconds_text(entry.compile_seconds),
            entry.producer.label or "-",
            entry.producer.host or "-",
        )
        for entry in entries
    )
    print_table(("entry", "created", "size", "compile", "label", "host"), rows)


def show(key: Key, *, url: Url = None, project: Project = None, as_json: JsonFlag = False) -> None:
    """Show all that is known of an entry: outputs, provenance, key document, where it is. Ends with 1 if nowhere."""
    here = Here.open(url, project)
    found = locate(here, key)
    if not found:
        _nowhere(key)
    # the shared cache's own copy names all outputs, a node tier's may lack the key document
    best = next((each.entry for each in reversed(found) if each.entry.key_document is not None), found[-1].entry)
    if as_json:
        print_json({"where": [each.where for each in found], "entry": best.to_json()})
        return
    rows = [
        ("key", best.key),
        ("kind", best.kind.value),
        ("project", best.project),
        ("in", "; ".join(each.where for each in found)),
        ("created", best.created),
        ("compiled in", seconds_text(best.compile_seconds)),
        ("by", f"{best.producer.version} on {best.producer.host or '-'}, label {best.producer.label or '-'}"),
        *((output.name, f"{size_text(output.size)}, sha256 {output.sha256}") for output in best.outputs),
        *signature_rows(here, best),
        *((name, _short(value)) for name, value in (best.key_document or {}).items() if name not in {"schema", "kind"}),
    ]
    print_table(("", ""), rows)


def get(
    key: Key,
    *,
    output: Annotated[str, typer.Option("--output", help="Which of its outputs.", metavar="NAME")] = MAIN_OUTPUT,
    to: Annotated[
        Path | None,
        typer.Option("--to", "-o", help="File to write; - is standard output. By default the output's name."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """Write an entry's output to a file, its digest verified. Ends with 1 if there is none.

    Nor one that may be used: where NEURON_CACHE_SIGNATURES=require, somebody who is trusted must vouch for it.
    """
    here = Here.open(url, project)
    check_output(output)
    found = locate(here, key)
    content, where = _content(here, found, output)
    if content is None:
        if not found:
            _nowhere(key)
        say(f"{key} has no output called {output} here")
        raise typer.Exit(Exit.NO)
    path = Path(output) if to is None else to
    if str(path) == "-":
        sys.stdout.buffer.write(content)
        return
    _write(path, content, force=force)
    digest = hashlib.sha256(content).hexdigest()
    if as_json:
        print_json({"file": str(path), "size": len(content), "sha256": digest, "where": where})
    else:
        typer.echo(f"{path}: {size_text(len(content))} from {where}")


def put(
    document: Annotated[
        Path, typer.Argument(metavar="DOCUMENT", help="File that holds the key document, as `show --json` prints it.")
    ],
    program: Annotated[
        Path, typer.Argument(metavar="NEFF", help="The NEFF that was compiled from exactly what the document names.")
    ],
    *,
    log: Annotated[Path | None, typer.Option("--log", help="The compiler's log.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="How long the compiler took.", min=0)] = 0.0,
    url: Url = None,
    project: Project = None,
    as_json: JsonFlag = False,
) -> None:
    """Publish a program that was compiled elsewhere. The first entry of a key stays: a second one is not stored.

    One that is damaged where it is stored is set aside, and this one takes its place.

    Stored in the shared cache, or in this machine's node tier where none is named.
    """
    here = Here.open(url, project)
    asked = read_document(document)
    outputs = {MAIN_OUTPUT: _read(program)}
    try:
        neff.validate(outputs[MAIN_OUTPUT])
    except FormatError as error:
        raise ConfigurationError(f"{program}: {error}") from error
    if log is not None:
        outputs[COMPILE_LOG] = _read(log)
    entry = Entry(
        project=here.settings.project,
        kind=check_kind(asked["kind"]),
        key=key_of(asked),
        outputs=tuple(
            Output(name, hashlib.sha256(content).hexdigest(), len(content)) for name, content in outputs.items()
        ),
        created=dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        compile_seconds=seconds,
        producer=Producer(f"neff-cache/{__version__}", socket.gethostname(), here.settings.label),
        key_document=asked,
    )
    signer = here.signer()
    if signer is not None:
        entry = signer.sign(entry, outputs)
    if here.settings.url is not None:
        with here.transport() as transport:
            published = transport.publish(entry, outputs, None)
            if not published.created and _is_damaged(transport, published.entry):
                published = transport.publish(entry, outputs, None)
            entry, created, where = published.entry, published.created, transport.address
    else:
        tier = here.tier()
        tier.tree.claim()
        created, where = tier.put(entry, outputs[MAIN_OUTPUT]), f"node tier {tier.tree.root}"
        here.evictor(tier).written(len(outputs[MAIN_OUTPUT]))
    if as_json:
        print_json({"created": created, "where": where, "entry": entry.to_json()})
    else:
        done = "stored in" if created else "was there already, nothing stored:"
        typer.echo(f"{entry.kind.value}/{entry.key} {done} {where}")


def _is_damaged(transport: Transport, entry: Entry) -> bool:
    """Have all outputs of an entry verified where they are stored; return whether it was set aside."""
    return any(transport.suspect(entry.kind, entry.key, output.sha256) != "sound" for output in entry.outputs)


def _nowhere(key: str) -> None:
    say(f"{key} is nowhere: not in the node tier, and not in the shared cache if one is named")
    raise typer.Exit(Exit.NO)


def _content(here: Here, found: list[Located], name: str) -> tuple[bytes | None, str]:
    """Return an output's bytes from the nearest place that has them, and that place."""
    for located in found:
        if located.is_shared:
            if here.check is not None and not here.check.admits(located.entry, located.where):
                continue
            with here.transport() as transport:
                content = transport.read_output(located.entry, name)
        elif name == MAIN_OUTPUT:
            try:
                stored = here.tier().get(located.entry.kind, located.entry.key)
            except DamagedEntryError:
                stored = None
            content = None if stored is None else stored.neff
        else:
            continue
        if content is not None:
            return content, located.where
    return None, ""


def _size(entry: Entry) -> int:
    main = entry.output()
    return 0 if main is None else main.size


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


def read_document(path: Path) -> dict[str, Any]:
    """Read a key document, or the one in what `show --json` printed."""
    try:
        value = json.loads(_read(path))
        for name in ("entry", "key_document"):
            value = value.get(name, value) if isinstance(value, dict) else value
        return check_asked(value)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} holds no key document: {error}") from error


def _write(path: Path, content: bytes, *, force: bool) -> None:
    if path.exists() and not force:
        raise ConfigurationError(f"{path} is there already: name another file, or use --force")
    temporary = temporary_beside(path)
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)  # noqa: PTH105 - says what happens
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
