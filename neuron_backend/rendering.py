"""Compiled modules as text, for people who want to know what differs."""

from __future__ import annotations

from neuron_backend.compilers.stablehlo import to_text


def render(code: bytes) -> str:
    """Return the text of a stored module: StableHLO, one operation a line, every constant written out.

    Raises ImportError where jaxlib is not installed, ValueError for bytes that it cannot read.
    """
    return to_text(code)
