"""``python -m cache_server.interface [--write]``: ``docs/openapi.json`` and ``docs/errors.md``, made from the server.

A test compares both with what this makes, so that neither can be changed alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cache_server.app import interface_document
from cache_server.interface.guide import errors_document

_DOCS = Path(__file__).resolve().parents[2] / "docs"


def documents() -> dict[Path, str]:
    """Return what belongs into each file."""
    return {
        _DOCS / "openapi.json": json.dumps(interface_document(), indent=1, ensure_ascii=False) + "\n",
        _DOCS / "errors.md": errors_document(),
    }


def main() -> None:
    """Print the document, or write both files with ``--write``."""
    made = documents()
    if sys.argv[1:] == ["--write"]:
        for path, text in made.items():
            path.write_text(text)
    else:
        sys.stdout.write(made[_DOCS / "openapi.json"])


if __name__ == "__main__":
    main()
