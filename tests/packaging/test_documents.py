"""The documents say what is so."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

from typer.main import get_command

from client.cli.main import app

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_a_document_names_exists():
    defined = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)\(", path.read_text()))
    named = {
        (document.name, name)
        for document in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"`(test_\w+)`", document.read_text())
    }
    assert named
    assert sorted((document, name) for document, name in named if name not in defined) == []


def test_every_link_between_documents_leads_somewhere():
    documents = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    links = [
        (document, target)
        for document in documents
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
        if "://" not in target
    ]
    assert [(document.name, target) for document, target in links if not (document.parent / target).exists()] == []


def _command_lines(text: str) -> list[list[str]]:
    """Return the words of each ``neff-cache …`` in code: a line of a block, or a span."""
    blocks = re.findall(r"^```.*?\n(.*?)^```|((?:^    .+\n)+)", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for part in block for line in part.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    found = []
    for line in (*lines, *spans):
        for part in re.findall(r"(?:^|\s|\()neff-cache ([^#;&)]*)", line):
            words = part.replace("…", "").replace("[", " ").replace("]", " ").split("|")[0]
            found.append(shlex.split(words, posix=False))
    return found


def _check_words(words: list[str]) -> str | None:
    """Return what is wrong with a command line's command and options, None if they exist."""
    command: Any = get_command(app)
    context = command.make_context("neff-cache", [], resilient_parsing=True)
    known = {option for parameter in command.get_params(context) for option in parameter.opts}
    for word in takewhile(lambda word: word != "--", words):
        name = word.strip("`,.").partition("=")[0]
        if name.startswith("-"):
            if name not in known:
                return f"{' '.join(words)}: {command.name} has no option {name}"
        elif hasattr(command, "list_commands") and re.fullmatch(r"[a-z][a-z-]*", name):
            below = command.get_command(context, name)
            if below is None:
                return f"{' '.join(words)}: there is no command {name}"
            command, context = below, type(context)(below, info_name=name, parent=context, resilient_parsing=True)
            known = {option for parameter in command.get_params(context) for option in parameter.opts}
    return None


def test_every_command_line_that_a_document_shows_can_be_typed():
    # cli.md is made from the commands themselves, and neff.md quotes the name of a program that begins so
    others = {"cli.md", "neff.md"}
    documents = [path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if path.name not in others]
    lines = [(document, words) for document in documents for words in _command_lines(document.read_text())]
    assert len(lines) > 20
    wrong = [(document.name, said) for document, words in lines if (said := _check_words(words)) is not None]
    assert wrong == []
