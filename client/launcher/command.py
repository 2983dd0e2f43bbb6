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
    words, wishes = _split_wrapper_words(arguments)
    wishes.update(word for word in cc_flags if word in (NO_CACHE, RETRY))
    if NO_CACHE in wishes:
        raise NotShared(NO_CACHE)
    scan = _Scan(words)
    command_at = scan.find_command()
    source_at = scan.find_source()
    if (_last(scan.values, FRAMEWORK) or "").upper() != "XLA":
        raise NotShared("--framework is not XLA")
    flags = keyed_flags([word for at, word in enumerate(words) if at not in (command_at, source_at)])
    return Request(words, source_at, flags, scan.values, retry_failed=RETRY in wishes)


class _Scan:
    """Where the words of each sort stand.

    ``plain`` are certainly neither options nor values; ``unsure`` stand behind an option that is not known, and are its
    value or not. ``values`` are those of known options, each with the place of the word that it ends.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.plain: list[int] = []
        self.unsure: list[int] = []
        self.values: dict[str, list[tuple[int, str]]] = {}
        self._words = words
        at = 0
        while at < len(words):
            at = self._take(at)

    def _take(self, at: int) -> int:
        """Look at one word, and its value if it has one; return the place of the next."""
        word = self._words[at]
        name, equals, value = word.partition("=")
        if word == "--" or word.startswith("@"):
            raise NotShared(f"the word {word[:1]!r}")
        if name in NEVER_SHARED or name.startswith("--dump") or "savetemps" in word.lower():
            raise NotShared(name)
        if not word.startswith("-"):
            self.plain.append(at)
        elif name in VALUED:
            return self._take_value(at, name, value if equals else None)
        elif not _is_level(word):
            _check_unknown(name, value)
            if not equals and at + 1 < len(self._words) and not self._words[at + 1].startswith(("-", "@")):
                self.unsure.append(at + 1)
                return at + 2
        return at + 1

    def _take_value(self, at: int, name: str, joined: str | None) -> int:
        at += joined is None
        value = joined if joined is not None else "".join(self._words[at : at + 1])
        if not value or value.startswith(("-", "@")):
            raise NotShared(f"{name} without a value")
        self.values.setdefault(name, []).append((at, value))
        return at + 1

    def find_command(self) -> int:
        """Take the sub-command off the candidates and return its place."""
        if self.plain and self._words[self.plain[0]] == COMPILE:
            return self.plain.pop(0)
        at = next((at for at in self.unsure if self._words[at] == COMPILE), None)
        if at is None or (self.plain and self.plain[0] < at):
            raise NotShared("not the sub-command compile")
        self.unsure.remove(at)
        return at

    def find_source(self) -> int:
        """Return the place of the one word that is the module."""
        files = [at for at in self.unsure if os.path.exists(self._words[at])]  # noqa: PTH110 - pathlib costs 3 ms
        if len(self.plain) == 1 and not files:
            return self.plain[0]
        if not self.plain and len(files) == 1:
            return files[0]
        raise NotShared("not certain which word is the module")


def without_wrapper_words(arguments: Sequence[str]) -> list[str]:
    """Return the words that the compiler itself understands."""
    return _split_wrapper_words(arguments)[0]


def _split_wrapper_words(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
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


def _last(values: Mapping[str, Sequence[tuple[int, str]]], names: Iterable[str]) -> str | None:
    """Return the right-most value of competing options."""
    return max((found for name in names for found in values.get(name, ())), default=(0, None))[1]
