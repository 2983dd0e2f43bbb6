"""The documents say what is so."""

from __future__ import annotations

import re
from pathlib import Path

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
