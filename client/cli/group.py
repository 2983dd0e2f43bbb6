"""The root of the command line: commands of other packages, and what becomes of errors."""

from __future__ import annotations

import errno
import warnings
from enum import IntEnum
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from client.bundles import BundleError
from client.cleaning import clean
from client.errors import (
    CacheMissError,
    CompileError,
    ConfigurationError,
    Denied,
    FormatError,
    NeffCacheError,
    Unreachable,
)
from client.node.permissions import UntrustedError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = "neff_cache.commands"


class Exit(IntEnum):
    """What an exit status of ``neff-cache`` means."""

    OK = 0
    NO = 1
    USAGE = 2
    UNREACHABLE = 3
    BUG = 70
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.OK: "done, or the answer is yes",
    Exit.NO: "the answer is no: an entry is missing, a check failed, the cache refused",
    Exit.USAGE: "wrong usage, settings, rights, or a file or folder here that cannot be used",
    Exit.UNREACHABLE: "the shared cache cannot be reached; nothing is known about what it holds",
    Exit.BUG: "a fault of neff-cache itself; `--debug` shows where",
    Exit.INTERRUPTED: "interrupted",
}

_CODES: tuple[tuple[type[Exception], Exit], ...] = (
    (Unreachable, Exit.UNREACHABLE),
    (ConfigurationError, Exit.USAGE),
    (BundleError, Exit.NO),
    (FormatError, Exit.USAGE),
    (Denied, Exit.USAGE),
    (CacheMissError, Exit.NO),
    (CompileError, Exit.NO),
    (NeffCacheError, Exit.NO),
    (UntrustedError, Exit.USAGE),
    (OSError, Exit.USAGE),
)


def exit_of(error: Exception) -> Exit:
    """Return the exit status for an error that ended a command."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.BUG)


class RootGroup(TyperGroup):
    """The group of all commands: ours, and those in the entry point group `COMMANDS`, loaded when they are asked for.

    Errors end as one sentence on standard error and a status of `Exit`; with ``--debug`` as a traceback.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *(entry.name for entry in entry_points(group=COMMANDS))})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, None if there is none of that name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        return next(map(_loaded, entry_points(group=COMMANDS, name=cmd_name)), None)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and explain how it failed if it did."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("neff-cache: interrupted", err=True)
            raise typer.Exit(Exit.INTERRUPTED) from None
        except Exception as error:
            # typer's own exceptions carry their status, and a reader that hung up is no error of ours
            if hasattr(error, "exit_code") or isinstance(error, typer.Abort) or _is_hang_up(error):
                raise
            if ctx.params.get("debug"):
                raise
            code = exit_of(error)
            said = f"{type(error).__name__}: {error}; please report this" if code is Exit.BUG else str(error)
            typer.echo(f"neff-cache: {clean(said)}", err=True)
            raise typer.Exit(code) from error


def _is_hang_up(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _loaded(entry: EntryPoint) -> Any:
    # the command that builds the device library must not be told that it is missing
    warnings.filterwarnings("ignore", message="neuron_backend: ")
    try:
        command = _made(entry.load())
    except Exception as error:  # noqa: BLE001 - one broken package must not take all commands along
        sentence = f"the command {entry.name} cannot be loaded: {type(error).__name__}: {error}"
        return get_group(_broken(sentence))
    command.name = entry.name
    return command


def _made(app: typer.Typer) -> Any:
    """Return what typer makes of ``app``: a command where it holds one and nothing else, else a group."""
    single = len(app.registered_commands) == 1 and not app.registered_groups and app.registered_callback is None
    return get_command(app) if single else get_group(app)


def _broken(sentence: str) -> typer.Typer:
    app = typer.Typer(help=f"(not available: {sentence})")

    @app.callback(invoke_without_command=True)
    def say() -> None:
        raise ConfigurationError(sentence)

    return app
