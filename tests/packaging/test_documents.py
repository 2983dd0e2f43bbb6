"""The documents say what is so."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
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


def _spans_of_groups(text: str) -> list[list[str]]:
    """Return the words of spans such as ``admin quota``, which leave the program's name to the reader."""
    return [words.split() for words in re.findall(rf"`((?:{_GROUPS}) [a-z][a-z-]+(?: [^`\n]*)?)`", text)]


_GROUPS = "admin|token|bundle|plan|key|launcher|backend"


@cache
def _root() -> Any:
    return get_command(app)


def _check_words(words: list[str]) -> str | None:
    """Return what is wrong with a command line's command and options, None if they exist."""
    command: Any = _root()
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


def test_every_command_that_a_document_calls_by_its_own_name_exists():
    documents = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "cli.md"]
    lines = [(document, words) for document in documents for words in _spans_of_groups(document.read_text())]
    assert len(lines) > 3
    assert [(document.name, said) for document, words in lines if (said := _check_words(words)) is not None] == []


def test_every_command_that_a_message_names_can_be_typed():
    lines = []
    for package in ("client", "cache_server", "neuron_backend", "migrations"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                # a message in pieces with values between them is one text, as its reader sees it
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                text = "".join(part.value if _is_text(part) else "VALUE" for part in parts)
                if isinstance(node, ast.JoinedStr) or _is_text(node):
                    if "`" not in text:
                        continue
                    lines += [(path, words) for words in (*_command_lines(text), *_spans_of_groups(text))]
    assert len(lines) > 40
    wrong = {(path.name, said) for path, words in lines if (said := _check_words(words)) is not None}
    assert wrong == set()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_every_command_of_an_example_or_a_file_to_deploy_can_be_typed():
    files = [ROOT / "docker-compose.yml", ROOT / "Dockerfile", ROOT / "Makefile", ROOT / ".ci" / "run"]
    for folder in ("deploy", "examples"):
        files += [
            path for path in (ROOT / folder).rglob("*") if path.suffix in {".yaml", ".service", ".py", ".sh", ".md"}
        ]
    lines = [
        (path, words.replace("\\", "").split())
        for path in files
        for words in re.findall(
            r"(?:^|[\s/`])neff-cache ((?:admin|serve|[a-z]+) ?[^#;&`)\n]*)", path.read_text(), re.MULTILINE
        )
        if words.split()[0] in _root().list_commands(None)
    ]
    assert len(lines) > 8
    assert [(path.name, said) for path, words in lines if (said := _check_words(words)) is not None] == []
