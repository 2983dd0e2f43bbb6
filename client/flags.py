"""The compiler's words that stand in a key, and those that do not."""

from __future__ import annotations

TYPE_CHECKING = False  # a hit of the launcher has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Words that cannot change the NEFF's code (neuronx-cc documentation). Only these are left out of the key;
# every other word, known or not, is part of it. The values say whether the word takes one of its own.
UNKEYED_WORDS: Mapping[str, bool] = {
    "--output": True,
    "-o": True,
    "--logfile": True,
    "--logfile-verbose": True,
    "--verbose": True,
    "--workdir": True,
}


def keyed_flags(words: Sequence[str]) -> tuple[str, ...]:
    """Return the compiler's words verbatim and in order, minus `UNKEYED_WORDS` and their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name in UNKEYED_WORDS:
            skip = not equals and UNKEYED_WORDS[name]
            continue
        kept.append(word)
    return tuple(kept)
