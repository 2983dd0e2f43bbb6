"""What commands print: JSON for programs, tables for people, progress only where somebody watches."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import typer

from client.cleaning import clean
from client.pulling import Progress
from client.sizes import ago_text, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
"""A terminal shows the first 12 digits of a key: enough for a person, and for the commands that look for one."""
_ID = re.compile(r"[\w=/()-]*\b[0-9a-f]{12,16}\b\)?")
"""What a terminal's line must not break: an id or the beginning of a key, with what it hangs on."""
_NUMBER = re.compile(r"-|-?[0-9.,]+%?( [A-Za-z]+)?")


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=1))


def print_text(text: str) -> None:
    """Print text that may quote others."""
    typer.echo(clean(text))


class Cell(str):
    """A table's cell that a terminal shows in short and never breaks; where the output is piped it stands in full."""

    __slots__ = ("short",)
    short: str

    def __new__(cls, text: str, short: str | None = None) -> Self:
        """Return ``text``, shown as ``short``: as it is by default."""
        cell = super().__new__(cls, text)
        cell.short = text if short is None else short
        return cell


def actor_cell(name: str) -> Cell:
    """Return who did something: a terminal has no room for the id of the token, which stands in brackets behind it."""
    return Cell(name, name.partition(" (")[0])


def time_cell(text: str | None, *, clock: Callable[[], float] = time.time) -> Cell:
    """Return a time of RFC 3339 as how long ago it is, or how far ahead; ``-`` for none."""
    if text is None:
        return Cell("-")
    try:
        moment = dt.datetime.fromisoformat(text).timestamp()
    except ValueError:  # somebody else's words
        return Cell(text)
    return Cell(text, ago_text(clock() - moment))


def _clean_cell(cell: str) -> str:
    plain = clean(cell, lines=False)
    return Cell(plain, clean(cell.short, lines=False)) if isinstance(cell, Cell) else plain


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: drawn as wide as the terminal; where the output is piped, a head and rows with tabs between.

    A table whose columns have no names has no head.
    """
    # labels, hosts and all else that others wrote: nothing in a cell ends its line or moves the cursor
    given = [[_clean_cell(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in ([columns] if any(columns) else []) + given:
            typer.echo("\t".join(row))
        return
    from rich.console import Console  # noqa: PLC0415 - a third of the start of a command that is piped
    from rich.table import Table  # noqa: PLC0415

    rows = [[_DIGEST.sub(r"\1", cell.short if isinstance(cell, Cell) else cell) for cell in row] for row in given]
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold", show_header=any(columns))
    whole = [any(isinstance(cell, Cell) for cell in cells) for cells in zip(*given, strict=True)]
    for place, column in enumerate(columns):
        cells = [row[place] for row in rows]
        width = max((len(name) for cell in cells for name in _ID.findall(cell)), default=None)
        justify: Literal["left", "right"] = "right" if cells and all(map(_NUMBER.fullmatch, cells)) else "left"
        table.add_column(
            column, overflow="fold", no_wrap=bool(cells) and whole[place], min_width=width, justify=justify
        )
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False, highlight=False).print(table)


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
