"""The command line of ``neuronx-cc``, read only as far as a cache must understand it.

Options may stand before or after the sub-command, values behind a blank or a ``=``, and of competing options the
right-most wins. Words that are not known are taken as they are, into the key; but where it is not certain which word is
the module, or whether a word changes what is written where, the run is not shared (`NotShared`).
"""

from __future__ import annotations

import os

from client.environment import WRAPPER_WORDS
from client.flags import UNKEYED_WORDS, keyed_flags
from client.launcher.passing import NotShared

TYPE_CHECKING = False  # a hit has no time to import typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COMPILE = "compile"
TARGET = ("--target",)
LOGICAL_CORES = ("--lnc", "-lnc", "--logical-nc-config")
OUTPUT = ("--output", "-o")
LOGFILE = ("--logfile",)
FRAMEWORK = ("--framework",)
NO_CACHE = "--no_cache"
RETRY = "--retry_failed_compilation"

# Options with one value of their own. The values of all but `UNKEYED_WORDS` are names and numbers, never files.
VALUED = frozenset(
    {
        *TARGET,
        *LOGICAL_CORES,
        *FRAMEWORK,
        *UNKEYED_WORDS,
        "-O",
        "--optlevel",
        "--model-type",
        "--auto-cast",
        "--auto-cast-type",
    }
)
# Runs that only tell something, or whose by-products are what the caller wants.
NEVER_SHARED = frozenset({"-h", "--help", "--version", "--pipeline", "--dump"})
_LONG = tuple(name for name in (*VALUED, *NEVER_SHARED, *WRAPPER_WORDS) if name.startswith("--"))


class Request:
    """A compile that can be shared.

    ``words`` is the command line without the program and without words that only wrappers understand; ``source``,
    ``output`` and ``logfile`` are paths as the caller gave them (``logfile`` may be None); ``flags`` stand in the key.
    ``target`` and ``logical_cores`` are what the words say, or None. ``retry_failed`` asks for another try.
    """

    __slots__ = (
        "_outputs",
        "_source_at",
        "flags",
        "logfile",
        "logical_cores",
        "output",
        "retry_failed",
        "source",
        "target",
        "words",
    )

    def __init__(
        self,
        words: Sequence[str],
        source_at: int,
        flags: tuple[str, ...],
        values: Mapping[str, Sequence[tuple[int, str]]],
        *,
        retry_failed: bool,
    ) -> None:
        self.words = words
        self.source = words[source_at]
        self.flags = flags
        self.retry_failed = retry_failed
        self.target = _last(values, TARGET)
        self.logical_cores = _last(values, LOGICAL_CORES)
        self.logfile = _last(values, LOGFILE)
        output = _last(values, OUTPUT)
        if not output:
            raise NotShared("no --output")
        self.output = output
        self._source_at = source_at
        self._outputs = [found for name in OUTPUT for found in values.get(name, ())]

    def command(self, source: str, output: str) -> list[str]:
        """Return the same words with another module and another output."""
        words = list(self.words)
        words[self._source_at] = source
        for at, value in self._outputs:
            words[at] = words[at][: len(words[at]) - len(value)] + output
        return words


def read(arguments: Sequence[str], cc_flags: Iterable[str] = ()) -> Request:
    """Return what the command line asks for; raises `NotShared`.

    ``cc_flags`` are the words of ``NEURON_CC_FLAGS``, in which callers find wishes that reach no compiler.
    """
    words, wishes = _without_wrapper_words(arguments)
    wishes.update(word for word in cc_flags if word in (NO_CACHE, RETRY))
    if NO_CACHE in wishes:
        raise NotShared(NO_CACHE)
    plain: list[int] = []  # certainly no option and no value
    unsure: list[int] = []  # behind an option that is not known: its value, or not
    values: dict[str, list[tuple[int, str]]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.partition("=")
        if word == "--" or word.startswith("@"):
            raise NotShared(f"the word {word[:1]!r}")
        if not word.startswith("-"):
            plain.append(at)
        elif name in NEVER_SHARED or name.startswith("--dump") or "savetemps" in word.lower():
            raise NotShared(name)
        elif name in VALUED:
            if not equals:
                at += 1
                value = words[at] if at < len(words) else "-"
            if value.startswith("-"):
                raise NotShared(f"{name} without a value")
            values.setdefault(name, []).append((at, value))
        elif not equals and at + 1 < len(words) and not words[at + 1].startswith(("-", "@")) and not _is_level(word):
            _check_unknown(name, value)
            at += 1
            unsure.append(at)
        elif not _is_level(word):
            _check_unknown(name, value)
        at += 1
    command_at = _find_command(words, plain, unsure)
    source_at = _find_source(words, plain, unsure)
    if (_last(values, FRAMEWORK) or "").upper() != "XLA":
        raise NotShared("--framework is not XLA")
    flags = keyed_flags([word for place, word in enumerate(words) if place not in (command_at, source_at)])
    return Request(words, source_at, flags, values, retry_failed=RETRY in wishes)


def _without_wrapper_words(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the words that the compiler understands, and those among the others that are wishes to a wrapper."""
    kept: list[str] = []
    wishes: set[str] = set()
    rest = iter(arguments)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in WRAPPER_WORDS:
            kept.append(word)
            continue
        wishes.add(name)
        if WRAPPER_WORDS[name] and not equals:
            next(rest, None)
    return kept, wishes


def _is_level(word: str) -> bool:
    """Whether the word is ``-O1`` and the like."""
    return word.startswith("-O") and word[2:].isdigit()


def _check_unknown(name: str, value: str) -> None:
    """Raise `NotShared` for an unknown option that could be a known one in disguise, or that names a file."""
    if name.startswith("-o") or (name.startswith("--") and any(known.startswith(name) for known in _LONG)):
        raise NotShared(f"{name} may stand for another option")
    if value and os.path.exists(value):  # noqa: PTH110 - pathlib costs 3 ms
        raise NotShared(f"{name} names a file")


def _find_command(words: Sequence[str], plain: list[int], unsure: list[int]) -> int:
    """Take the sub-command off the candidates and return its place."""
    if plain and words[plain[0]] == COMPILE:
        return plain.pop(0)
    at = next((at for at in unsure if words[at] == COMPILE), None)
    if at is None or (plain and plain[0] < at):
        raise NotShared("not the sub-command compile")
    unsure.remove(at)
    return at


def _find_source(words: Sequence[str], plain: list[int], unsure: list[int]) -> int:
    """Return the place of the one word that is the module."""
    files = [at for at in unsure if os.path.exists(words[at])]  # noqa: PTH110
    if len(plain) == 1 and not files:
        return plain[0]
    if not plain and len(files) == 1:
        return files[0]
    raise NotShared("not certain which word is the module")


def _last(values: Mapping[str, Sequence[tuple[int, str]]], names: Iterable[str]) -> str | None:
    """Return the right-most value of competing options."""
    return max((found for name in names for found in values.get(name, ())), default=(0, None))[1]
