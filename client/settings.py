"""What the environment asks of the client: every ``NEURON_CACHE_*`` setting that the cache itself reads.

A setting that means nothing is no reason to lose a job: it is reported in `Settings.problems` with what was expected
and what is used instead, and `client.cache.Cache` logs each once. Tokens, certificates and proxies belong to the
transports and are never held here.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast, get_args

from client.errors import ConfigurationError, WireError
from client.folders import base_folder
from client.names import DEFAULT_PROJECT, check_project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Mode: TypeAlias = Literal["rw", "ro", "off"]
OnMiss: TypeAlias = Literal["compile", "fail"]
OnError: TypeAlias = Literal["continue", "fail"]
Signatures: TypeAlias = Literal["require", "warn", "off"]
T = TypeVar("T")

HOUR = 3600.0
LIMIT = 2 * HOUR
"""Seconds: the default of both the longest wait and the longest compile."""
NODE_MAX_BYTES = 20 << 30
NODE_MAX_AGE = 90 * 24 * HOUR
"""Seconds for which an entry that nobody uses stays on a node."""
MAX_LABEL = 128

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Where launchers say which rank a process is, the job-wide ones first."""

_LONGEST_PATH, _LONGEST_NAME = 4095, 255
"""Bytes: PATH_MAX without its final zero, and NAME_MAX, of Linux."""

_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|h|d)?", re.IGNORECASE)
_SECOND_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": HOUR, "d": 24 * HOUR}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Settings:
    """The client's settings. Times are in seconds, sizes in bytes.

    ``node_dir`` None means that there is no node tier; ``node_fallback`` is used if this user cannot reach it. ``url``
    None means that nothing is shared. ``summary`` and ``record`` are file names in which `expand` replaces ``%p`` and
    ``%r``. ``problems`` holds a sentence for each setting that could not be followed.
    """

    url: str | None = None
    project: str = DEFAULT_PROJECT
    node_dir: Path | None = None
    node_fallback: Path | None = None
    node_shared: bool = False
    node_max_bytes: int = NODE_MAX_BYTES
    node_max_age: float = NODE_MAX_AGE
    mode: Mode = "rw"
    label: str = ""
    on_miss: OnMiss = "compile"
    on_error: OnError = "continue"
    wait_limit: float = LIMIT
    compile_limit: float = LIMIT
    compile_slots: int | None = None
    compile_memory: int | None = None
    summary: str | None = None
    record: str | None = None
    rank: int | None = None
    signing_key: Path | None = None
    trusted_keys: Path | None = None
    signatures: Signatures | None = None
    problems: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from ``environ`` (default: the process's own).

        Raises `ConfigurationError` for a setting that means nothing, but only where ``NEURON_CACHE_ON_ERROR=fail``.
        """
        read = _Reader(os.environ if environ is None else environ)
        settings = cls(
            url=read.text("URL"),
            project=read.parsed("PROJECT", DEFAULT_PROJECT, check_project, "a-z, 0-9 and -, 1 to 63 characters"),
            node_dir=read.node_directory(),
            node_fallback=read.node_fallback(),
            node_shared=read.choice("NODE_SHARED", ("private", "group"), "private") == "group",
            node_max_bytes=read.parsed("NODE_MAX_BYTES", NODE_MAX_BYTES, parse_bytes, "a size such as 20GiB"),
            node_max_age=read.parsed("NODE_MAX_AGE", NODE_MAX_AGE, parse_seconds, "seconds, or a time such as 30d"),
            mode=cast("Mode", read.choice("MODE", get_args(Mode), "rw")),
            label=(read.text("LABEL") or "")[:MAX_LABEL],
            on_miss=cast("OnMiss", read.choice("ON_MISS", get_args(OnMiss), "compile")),
            on_error=cast("OnError", read.choice("ON_ERROR", get_args(OnError), "continue")),
            wait_limit=read.parsed("WAIT_LIMIT", LIMIT, parse_seconds, "seconds, or a time such as 90m"),
            compile_limit=read.parsed("COMPILE_LIMIT", LIMIT, parse_seconds, "seconds, or a time such as 90m"),
            compile_slots=read.parsed("COMPILE_SLOTS", None, _parse_count, "a whole number from 1"),
            compile_memory=read.parsed("COMPILE_MEMORY", None, _parse_memory, "a size such as 64GiB"),
            summary=read.text("SUMMARY"),
            record=read.text("RECORD"),
            rank=read.rank(),
            signing_key=read.path("SIGNING_KEY"),
            trusted_keys=read.path("TRUSTED_KEYS"),
            signatures=cast("Signatures | None", read.optional_choice("SIGNATURES", get_args(Signatures))),
            problems=tuple(read.problems),
        )
        if settings.problems and settings.on_error == "fail":
            raise ConfigurationError("; ".join(settings.problems))
        return settings

    @property
    def signature_mode(self) -> Signatures:
        """What is done about entries that nobody vouches for: with a list of trusted keys, a warning at least."""
        return self.signatures or ("off" if self.trusted_keys is None else "warn")

    @property
    def asks_about_signatures(self) -> bool:
        """Whether anything is signed here, or checked."""
        return self.signing_key is not None or self.signature_mode != "off"

    def expand(self, name: str) -> Path:
        """Return the file called ``name`` with ``%p`` (process id), ``%r`` (rank, 0 without one) and ``~`` replaced."""
        rank = 0 if self.rank is None else self.rank
        return Path(name.replace("%p", str(os.getpid())).replace("%r", str(rank))).expanduser()


class _Reader:
    """Reads settings one by one and keeps a sentence about each that means nothing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def text(self, name: str) -> str | None:
        """Return the setting without surrounding blanks; an empty one counts as unset."""
        return self._environ.get(f"NEURON_CACHE_{name}", "").strip() or None

    def parsed(self, name: str, default: T, parse: Callable[[str], T], expected: str) -> T:
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except (ValueError, OverflowError, WireError):
            used = "nothing" if default is None else repr(default)
            self.problems.append(f"NEURON_CACHE_{name}={value!r} means nothing: expected {expected}; using {used}")
            return default

    def choice(self, name: str, words: tuple[str, ...], default: str) -> str:
        def parse(value: str) -> str:
            if value.lower() not in words:
                raise ValueError
            return value.lower()

        return self.parsed(name, default, parse, " or ".join(words))

    def optional_choice(self, name: str, words: tuple[str, ...]) -> str | None:
        """Return one of ``words``, None for an unset setting; the first, the strictest, for one that means nothing."""
        return None if self.text(name) is None else self.choice(name, words, words[0])

    def path(self, name: str) -> Path | None:
        given = self.text(name)
        if given is None:
            return None
        try:
            return Path(given).expanduser().absolute()
        except RuntimeError:  # no home directory: the name is not found, and whoever reads the file says so
            return Path(given).absolute()

    def node_directory(self) -> Path | None:
        given = self.text("NODE_DIR")
        try:
            path = (self._default_directory() if given is None else Path(given)).expanduser()
        except RuntimeError:  # no HOME, and the user is in no password file: usual in containers
            self.problems.append(
                "this user has no home directory, so there is no node tier: set NEURON_CACHE_NODE_DIR to a directory"
            )
            return None
        path = path.absolute()
        if len(os.fsencode(path)) > _LONGEST_PATH or any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
            self.problems.append(
                f"the node tier's folder {str(path)[:60]}… has too long a name (at most {_LONGEST_PATH} bytes work, "
                f"{_LONGEST_NAME} in each part), so there is no node tier: set NEURON_CACHE_NODE_DIR to another one"
            )
            return None
        return path

    def node_fallback(self) -> Path | None:
        try:
            return None if self.text("NODE_DIR") is None else self._default_directory().expanduser().absolute()
        except RuntimeError:
            return None

    def _default_directory(self) -> Path:
        # without a base, `expanduser` has no answer either
        return Path(base_folder(self._environ, "XDG_CACHE_HOME") or "~") / "neff-cache"

    def rank(self) -> int | None:
        for name in _RANKS:
            value = self._environ.get(name, "")
            if value.isascii() and value.isdigit():
                return int(value)
        return None


def parse_seconds(text: str) -> float:
    """Return the seconds that ``90``, ``90m`` or ``30d`` stand for; raises ValueError."""
    match = _SECONDS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _SECOND_UNITS[(match[2] or "").lower()]


def parse_bytes(text: str) -> int:
    """Return the bytes that ``512``, ``20G`` or ``20GiB`` stand for; raises ValueError."""
    match = _BYTES.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * _BYTE_UNITS[match[2].lower()])


def _parse_memory(text: str) -> int | None:
    size = parse_bytes(text)
    if size < 1:
        raise ValueError(text)
    return size


def _parse_count(text: str) -> int | None:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count
