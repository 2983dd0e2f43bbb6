"""The one step between a text of somebody else and a screen, a log or an error: nothing in it moves a cursor.

Labels, host names, key documents, compilers' logs and a peer's own words come from others. A terminal obeys the control
characters in them, and characters that turn the direction of writing show another text than the one that is there.
"""

from __future__ import annotations

_LINES = frozenset("\n\t")
_SPACES = frozenset("\u00a0\u202f\u3000")
"""Blanks that are no plain space, and harmless."""


def clean(text: str, *, lines: bool = True) -> str:
    r"""Return ``text`` with everything that is not seen as itself written out, as ``\x1b`` or ``\u202e``.

    With ``lines`` ends of lines and tabs stay: for texts of several lines, such as a compiler's log.
    """
    if text.isprintable():
        return text
    kept = _LINES | _SPACES if lines else _SPACES
    return "".join(
        character if character.isprintable() or character in kept else character.encode("unicode_escape").decode()
        for character in text
    )


def cleaned_value(value: object) -> object:
    """Return a value of a log line with all texts in it cleaned, however deep they lie."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {str(cleaned_value(name)): cleaned_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        cleaned = [cleaned_value(each) for each in value]
        return cleaned if isinstance(value, list) else tuple(cleaned)
    return value
