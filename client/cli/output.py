"""What commands print: JSON for programs, tables for people, progress only where somebody watches."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from client.cleaning import clean
from client.pulling import Progress
from client.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=1))


def print_text(text: str) -> None:
    """Print text that may quote others."""
    typer.echo(clean(text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: drawn on a terminal, tab-separated lines without a head where the output is piped."""
    # labels, hosts and all else that others wrote: nothing in a cell ends its line or moves the cursor
    rows = [[clean(cell, lines=False) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    from rich.console import Console  # noqa: PLC0415 - a third of the start of a command that is piped
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False).print(table)


def print_or_write(document: Path, text: str) -> None:
    """Print a generated document, or write it to its place if the command line says ``--write``."""
    if sys.argv[1:] == ["--write"]:
        document.write_text(text)
    else:
        sys.stdout.write(text)


def say(text: str) -> None:
    """Tell the user about the run; on standard error, so that the output stays clean."""
    typer.echo(f"neff-cache: {clean(text)}", err=True)


class Bar(Progress):
    """Progress on standard error while somebody watches it, nothing otherwise. Use it in a ``with`` statement."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bars: Any = None
        self._task: Any = None
        self._entries = self._expected = self._size = 0

    def __enter__(self) -> Self:
        """Begin to show it, on a terminal."""
        if sys.stderr.isatty():
            from rich.console import Console  # noqa: PLC0415 - see above
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
            from rich.progress import Progress as Bars  # noqa: PLC0415

            columns = (
                TextColumn(self._what),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[size]}"),
                TimeRemainingColumn(),
            )
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bars.add_task(self._what, total=None, size="")
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it again."""
        if self._bars is not None:
            self._bars.stop()

    def total(self, entries: int, size: int) -> None:
        """See `Progress.total`."""
        self._entries += entries
        self._expected += size
        if self._bars is not None:
            self._bars.update(self._task, total=self._entries)

    def done(self, entries: int, size: int) -> None:
        """See `Progress.done`."""
        self._size += size
        if self._bars is not None:
            text = f"{size_text(self._size)} of {size_text(self._expected)}" if self._expected else ""
            self._bars.update(self._task, advance=entries, size=text)
