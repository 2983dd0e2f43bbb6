"""A readable difference of two compiled modules, where something installed here can render them.

The client knows no compiler's format: packages that do add a renderer through the entry point group
`neff_cache.renderers`, a function from an output's bytes to text, under the output's name.
"""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RENDERERS = "neff_cache.renderers"
MODULE_OUTPUT = "module.mlirbc"
"""The output that holds the compiled module itself."""
MAX_LINES = 200
_MAX_LINE = 400


class CannotRenderError(Exception):
    """There is no text of a module; the message says why, and what to do."""


def renderer(name: str = MODULE_OUTPUT) -> Callable[[bytes], str]:
    """Return the function that renders outputs called ``name``; raises `CannotRenderError`."""
    for entry in entry_points(group=RENDERERS, name=name):
        try:
            found: Callable[[bytes], str] = entry.load()
        except ImportError as error:
            raise CannotRenderError(
                f"modules cannot be rendered here ({error}): run `pip install 'neff-cache[torch]'`"
            ) from error
        return found
    raise CannotRenderError(f"nothing installed here renders {name}: run `pip install 'neff-cache[torch]'`")


def module_difference(stored: bytes, asked: bytes, *, render: Callable[[bytes], str] | None = None) -> list[str]:
    """Return the lines of a unified difference of two modules' texts, at most `MAX_LINES`.

    Raises `CannotRenderError` where they cannot be rendered.
    """
    render = render or renderer()
    try:
        before, after = render(stored).splitlines(), render(asked).splitlines()
    except (ImportError, ValueError) as error:
        raise CannotRenderError(f"the modules cannot be rendered here: {error}") from error
    lines = [
        line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…"
        for line in difflib.unified_diff(before, after, "stored", "asked", lineterm="", n=1)
    ]
    if len(lines) > MAX_LINES:
        return [*lines[:MAX_LINES], f"… {len(lines) - MAX_LINES} more lines"]
    return lines
