"""``plan shapes``: which lengths to compile for, from how often each is asked for."""

import json
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from client.buckets import Choice, choices, read_histogram
from client.cli.options import JsonFlag
from client.cli.output import print_json, print_table, say
from client.errors import ConfigurationError, FormatError
from client.record import RECORD_SCHEMA

plan_app = typer.Typer(help="Prepare what jobs will need.", no_args_is_help=True)

DEFAULT_WASTE = 0.1
_TABLE = 16
_BAR = 40


@plan_app.callback()
def plan() -> None:
    """Keep ``shapes`` a sub-command though it is the only one."""


@plan_app.command()
def shapes(
    histogram: Annotated[
        str,
        typer.Argument(
            metavar="HISTOGRAM",
            help="File of `length,count` lines, or JSON lines with these names; - for standard input.",
        ),
    ],
    *,
    buckets: Annotated[int | None, typer.Option("--buckets", "-k", help="This many buckets.", min=1)] = None,
    max_waste: Annotated[
        float | None,
        typer.Option(
            "--max-waste",
            help="As few buckets as keep padding at or below this part of what is computed (0 to 1). "
            f"The default, with {DEFAULT_WASTE}, if --buckets is not given.",
            min=0,
            max=1,
        ),
    ] = None,
    multiple_of: Annotated[int, typer.Option("--multiple-of", help="What every bucket is a multiple of.", min=1)] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the buckets to this file, for `prewarm --shapes`.", dir_okay=False),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw the choice into this SVG file.", dir_okay=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Choose input lengths to compile for, so that padding to the next one wastes least.

    Each bucket is a graph to compile; fewer buckets mean more padding. Shows the best choice for each number of graphs,
    which is exact, and takes one of them.
    """
    if buckets is not None and max_waste is not None:
        raise ConfigurationError("--buckets and --max-waste each choose the number of buckets: give one of them")
    counted = _read(histogram)
    limit = DEFAULT_WASTE if max_waste is None and buckets is None else max_waste
    found, chosen = _choose(choices(counted, multiple_of), buckets, limit)
    document = {"schema": RECORD_SCHEMA, "buckets": list(chosen.buckets), "waste": chosen.waste}
    if output is not None:
        output.write_text(json.dumps(document) + "\n")
    if picture is not None:
        from client.cli.buckets_picture import picture as drawn  # noqa: PLC0415 - seldom asked for

        picture.write_text(drawn(counted, found, chosen))
    if as_json:
        listed = [{"buckets": list(choice.buckets), "waste": choice.waste} for choice in found]
        print_json({**document, "real": chosen.real, "padded": chosen.padded, "choices": listed})
        return
    print_table(("choice", "graphs", "padding", "bar", "buckets"), [_row(choice, chosen, found[0]) for choice in found])
    if buckets is not None and len(chosen.buckets) < buckets:
        say(f"{len(chosen.buckets)} buckets are enough: with them no input is padded further than to {multiple_of}")


def _read(name: str) -> dict[int, int]:
    if name == "-":
        return read_histogram(sys.stdin.read(), "standard input")
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the histogram {name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{name} is no text: expected lines of `length,count`") from error
    return read_histogram(text, name)


def _choose(offered: Iterable[Choice], count: int | None, limit: float | None) -> tuple[list[Choice], Choice]:
    """Return the choices to show, and the one to take: that of ``count`` buckets, or the first within ``limit``."""
    found: list[Choice] = []
    chosen: Choice | None = None
    for choice in islice(offered, max(count or 0, _TABLE) if limit is None else None):
        found.append(choice)
        if chosen is None and (len(choice.buckets) == count or (limit is not None and choice.waste <= limit)):
            chosen = choice
        if chosen is not None and len(found) >= _TABLE:
            break
    return found, chosen or found[-1]


def _row(choice: Choice, chosen: Choice, first: Choice) -> tuple[str, ...]:
    bar = "█" * round(_BAR * choice.waste / first.waste) if first.waste else ""
    mark = ">" if choice is chosen else ""
    return mark, str(len(choice.buckets)), f"{choice.waste:.1%}", bar, ",".join(map(str, choice.buckets))
