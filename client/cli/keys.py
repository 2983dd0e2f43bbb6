"""``neff-cache key``: make signing keys, and keep the list of those whose entries are believed."""

import datetime as dt
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from client.cli.opening import Here
from client.cli.options import JsonFlag
from client.cli.output import Cell, print_json, print_table, say
from client.errors import ConfigurationError, FormatError
from client.names import Kind
from client.node.tree import temporary_beside
from client.signing.keys import PUBLIC_SUFFIX, PrivateKey, check_name, write_new
from client.signing.trust import TrustedKey, TrustList, parse_time

key_app = typer.Typer(
    help="Make keys that sign entries, and keep the list of trusted ones. See docs/trust.md.", no_args_is_help=True
)

KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key; FILE.pub is the public one.")]
PublicLine = Annotated[
    str, typer.Argument(metavar="LINE|FILE", help="A public line in quotes, or a file that holds one.")
]
Name = Annotated[
    str | None, typer.Option("--name", help="What the key is called in lists; by default the file's name.")
]
Listed = Annotated[str, typer.Argument(metavar="KEY", help="Id or name of a key in the list.")]
TrustedKeys = Annotated[
    Path | None,
    typer.Option(
        "--trusted-keys", help="The list of trusted keys, in place of NEURON_CACHE_TRUSTED_KEYS.", metavar="FILE"
    ),
]
OfKinds = Annotated[list[Kind] | None, typer.Option("--kind", help="It signs only these kinds; may be repeated.")]
OfProjects = Annotated[
    list[str] | None,
    typer.Option(
        "--for", help="It speaks only for these projects, such as prod-*; may be repeated.", metavar="PROJECT"
    ),
]


@key_app.command()
def generate(file: KeyFile, *, name: Name = None) -> None:
    """Make a key pair: FILE, which only you can read, and FILE.pub. Print the public line, for lists of others.

    Files that are there are never replaced.
    """
    called = check_name(name or file.name)
    if _public_file(file).exists():
        raise ConfigurationError(f"{_public_file(file)} is there already: name another file, keys are not replaced")
    key = PrivateKey.generate()
    key.save(file)
    line = TrustedKey(key.public, called).line
    write_new(_public_file(file), f"{line}\n".encode(), mode=0o644)
    typer.echo(line)
    say(f"{file} is the private key of {key.public.key_id}: set NEURON_CACHE_SIGNING_KEY to it where entries are made")


@key_app.command()
def show(file: KeyFile, *, name: Name = None, as_json: JsonFlag = False) -> None:
    """Print the public line and the id of a private key."""
    key = PrivateKey.load(file)
    line = TrustedKey(key.public, check_name(name or file.name)).line
    if as_json:
        print_json({"key_id": key.public.key_id, "public": line})
    else:
        print_table(("", ""), (("id", key.public.key_id), ("public", line)))


@key_app.command()
def trust(
    public: PublicLine,
    *,
    name: Name = None,
    kind: OfKinds = None,
    projects: OfProjects = None,
    not_before: Annotated[str | None, typer.Option(help="Believe no entry made before, such as 2026-12-01.")] = None,
    not_after: Annotated[str | None, typer.Option(help="Believe no entry made after.")] = None,
    file: TrustedKeys = None,
) -> None:
    """Add a key to the list of trusted keys, or change what it may sign."""
    found = read_public(public)
    key = replace(
        found,
        name=check_name(name or found.name),
        kinds=tuple(kind) if kind else found.kinds,
        projects=tuple(projects) if projects else found.projects,
        not_before=not_before or found.not_before,
        not_after=not_after or found.not_after,
    )
    TrustedKey.parse(key.line)  # what was given is a line that can be read again
    path = _change(file, lambda keys: keys.with_key(key), missing_ok=True)
    say(f"{key.name} ({key.key_id}) is trusted by {path}")


@key_app.command("list")
def list_keys(*, file: TrustedKeys = None, as_json: JsonFlag = False) -> None:
    """List the trusted keys and what bounds them."""
    keys = TrustList.load(_list_file(file)).keys
    if as_json:
        print_json([key_json(key) for key in keys])
        return
    print_table(
        ("id", "name", "state", "kinds", "projects"),
        (
            (Cell(key.key_id), key.name, key_state(key), ",".join(key.kinds) or "all", ",".join(key.projects) or "all")
            for key in keys
        ),
    )


@key_app.command()
def retire(
    key: Listed,
    *,
    after: Annotated[str | None, typer.Option("--after", help="From when on; by default now.", metavar="TIME")] = None,
    file: TrustedKeys = None,
) -> None:
    """Believe nothing that a key signs from now on, or from a time on; what it signed before stays good.

    For a key that is replaced. One that may have been stolen is revoked: a thief can write any time into an entry.
    """
    end = _time(after)
    path = _change(file, lambda keys: keys.with_key(replace(keys.find(key), not_after=end)))
    say(f"{key} is retired after {end} by {path}")


@key_app.command()
def revoke(key: Listed, *, file: TrustedKeys = None) -> None:
    """Never believe a key again, whatever it signed and whenever. It stays in the list, so that it stays revoked."""
    path = _change(file, lambda keys: keys.revoke(keys.find(key), _time(None)))
    say(f"{key} is revoked by {path}: what it signed is compiled anew")


@key_app.command()
def untrust(key: Listed, *, file: TrustedKeys = None) -> None:
    """Take a key off the list; it may be added again. A revoked key stays."""
    path = _change(file, lambda keys: keys.without(keys.find(key)))
    say(f"{key} is not in {path} any more")


@key_app.command()
def rotate(
    old: Listed,
    new: KeyFile,
    *,
    until: Annotated[
        str, typer.Option("--until", help="How long the old key is still believed to sign.", metavar="TIME")
    ],
    name: Name = None,
    file: TrustedKeys = None,
) -> None:
    """Make a new key that may sign what an old one may, trust it beside the old one, and retire that after a time.

    Give the list to everybody who reads first, then NEURON_CACHE_SIGNING_KEY to those who sign.
    """
    path, end = _list_file(file), _time(until)
    before = TrustList.load(path).find(old)
    generate(new, name=name)
    made = replace(read_public(str(_public_file(new))), kinds=before.kinds, projects=before.projects)
    _change(file, lambda keys: keys.with_key(made).with_key(replace(keys.find(old), not_after=end)))
    say(f"{made.name} ({made.key_id}) is trusted beside {before.name}, which is retired after {end}, by {path}")


def key_state(key: TrustedKey) -> str:
    """Return what bounds a key, in a few words."""
    if key.revoked is not None:
        return f"revoked {key.revoked}"
    bounds = [f"from {key.not_before}"] if key.not_before else []
    return " ".join([*bounds, *([f"until {key.not_after}"] if key.not_after else [])]) or "trusted"


def key_json(key: TrustedKey) -> dict[str, object]:
    """Return a trusted key as plain JSON values."""
    return {
        "key_id": key.key_id,
        "name": key.name,
        "public": str(key.public),
        "not_before": key.not_before,
        "not_after": key.not_after,
        "revoked": key.revoked,
        "kinds": [kind.value for kind in key.kinds],
        "projects": list(key.projects),
    }


def read_public(text: str) -> TrustedKey:
    """Return the key in a public line, or in the file of that name; raises `ConfigurationError`."""
    line = text
    if not text.startswith("ed25519 "):
        try:
            line = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{text!r} is neither a public line (`ed25519 BASE64 NAME`) nor a file with one"
            ) from error
    try:
        (key,) = TrustList.parse(line).keys
    except FormatError as error:
        raise ConfigurationError(f"{text[:60]!r} holds no public key: {error}") from error
    except ValueError:
        raise ConfigurationError(f"{text[:60]!r} holds no public key, or several: expected one line") from None
    return key


def _public_file(file: Path) -> Path:
    return file.with_name(file.name + PUBLIC_SUFFIX)


def _list_file(given: Path | None) -> Path:
    path = given or Here.open().settings.trusted_keys
    if path is None:
        raise ConfigurationError(
            "no list of trusted keys is named: set NEURON_CACHE_TRUSTED_KEYS, or give --trusted-keys"
        )
    return path


def _change(given: Path | None, change: Callable[[TrustList], TrustList], *, missing_ok: bool = False) -> Path:
    """Put a changed list in the place of the old one, at once and whole: jobs read it while they run."""
    path = _list_file(given)
    before = TrustList() if missing_ok and not path.exists() else TrustList.load(path)
    text = change(before).text
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(_comments(path) + text, encoding="utf-8")
        os.replace(temporary, path)  # noqa: PTH105 - says what happens
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


def _comments(path: Path) -> str:
    """Return the comments that people wrote, which are kept at the top."""
    if not path.exists():
        return ""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "".join(f"{line}\n" for line in lines if line.lstrip().startswith("#"))


def _time(text: str | None) -> str:
    """Return a time as lists hold it; None is now."""
    found = dt.datetime.now(dt.UTC) if text is None else parse_time(text)
    return found.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
