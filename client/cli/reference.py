"""``python -m client.cli.reference [--write]``: the command line's reference, ``docs/cli.md``, made from its own help.

A test compares the document with what this prints, so that neither can be changed alone.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from client.cli.group import MEANINGS
from client.cli.main import app
from client.cli.output import print_or_write

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "cli.md"

_HEAD = """# Command line

Made by `python -m client.cli.reference --write`; a test keeps it current.

Jobs use the cache by themselves; with these commands people look into it, fill a node before a job needs it, and find
out why something was compiled again. Settings are those of jobs ([settings](settings.md)). Every command has `--help`,
and `--json` for programs: one JSON document on standard output. Tables are drawn on a terminal and are tab-separated
lines where the output is piped; progress is shown on a terminal only; all else that is said goes to standard error.
`neff-cache --debug COMMAND …` shows a traceback where something fails, and `neff-cache --install-completion` makes the
shell complete commands and options.

## Exit statuses

| status | meaning |
|---|---|
"""


def reference() -> str:
    """Return the document."""
    root: Any = get_command(app)
    root.name = "neff-cache"
    statuses = "".join(f"| {int(code)} | {meaning} |\n" for code, meaning in MEANINGS.items())
    context = root.make_context("neff-cache", [], resilient_parsing=True)
    return _HEAD + statuses + "".join(_sections(root, context))


def _sections(group: Any, context: Any) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = type(context)(command, info_name=name, parent=context, resilient_parsing=True)
        if getattr(command, "invoke_without_command", False) or not hasattr(command, "list_commands"):
            yield _section(command, below)
        else:
            yield f"\n## `{below.command_path}`\n\n{_help(command)}\n"
        if hasattr(command, "list_commands"):
            yield from (text.replace("\n## ", "\n### ") for text in _sections(command, below))


def _section(command: Any, context: Any) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"\n## `{context.command_path} {usage}`\n\n{_help(command)}\n"]
    rows = [record for parameter in command.get_params(context) if (record := _row(parameter, context)) is not None]
    if rows:
        lines.append("\n| | |\n|---|---|\n")
        lines += [f"| `{_cell(left)}` | {_cell(right)} |\n" for left, right in rows]
    return "".join(lines)


def _row(parameter: Any, context: Any) -> tuple[str, str] | None:
    if parameter.hidden or "--help" in parameter.opts:
        return None
    record = parameter.get_help_record(context)
    return None if record is None else (record[0], record[1])


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "").replace("\f", "").strip()


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    """Print the document, or write it with ``--write``."""
    print_or_write(DOCUMENT, reference())


if __name__ == "__main__":
    main()
