"""Why a key missed: what differs between its key document and the nearest one that is stored.

The comparison is plain and total: whatever makes two documents' keys differ is named here. Flags are compared word by
word together with the values that follow them, then by their order, because the order is part of the key.
"""

from __future__ import annotations

import heapq
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client.errors import WireError
from client.key import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Json = dict[str, Any]

ORDER = "flags (order)"
MODULE = "ir.sha256"
_MODULE_WEIGHT = 3
"""A module that differs says less about a miss than one flag does: it may just be another program."""
_OTHER_KIND = 1000
_MAX_SHOWN = 400
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_LEVEL = re.compile(r"-O[0-9a-z]+")
_MISSING = object()

_MEANINGS: tuple[tuple[str, str], ...] = (
    ("kind", "kinds never mix: eager operators, graphs and launcher compiles have entries of their own"),
    ("schema", "the entry is of another release of the key's schema"),
    ("ir.", "the program itself: an operator, a shape, a dtype or a constant"),
    ("compiler.", "the compiler: pin one version on all hosts and images"),
    ("target", "the chip that is compiled for; NEURON_PLATFORM_TARGET_OVERRIDE sets it"),
    ("logical_cores", "cores that make one logical core; NEURON_LOGICAL_NC_CONFIG sets it"),
    (ORDER, "the same flags in another order: where flags compete, the last one wins"),
    ("flags", "the compiler's flags; NEURON_CC_FLAGS adds some"),
    ("kernels", "a kernel's file that the program names"),
    ("extra.env", "the environment: every NEURON_*, XLA_* and NKI_* variable that the launcher does not know is keyed"),
    ("extra.xla_flags", "XLA_FLAGS"),
    ("extra", "what the backend adds to the key"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of two key documents. A value is None where that document does not have the part."""

    path: str
    stored: Any
    asked: Any

    def to_json(self) -> Json:
        """Return the difference as plain JSON values."""
        return {"path": self.path, "stored": self.stored, "asked": self.asked}

    @classmethod
    def from_json(cls, value: Any) -> Difference:
        """Read a difference; raises `WireError`."""
        if not isinstance(value, dict) or not isinstance(value.get("path"), str):
            raise WireError("a difference is a JSON object with a path")
        return cls(value["path"], value.get("stored"), value.get("asked"))

    @property
    def meaning(self) -> str:
        """What the part stands for, and what to do about it; "" for one that is not known here."""
        return next((text for start, text in _MEANINGS if self.path.startswith(start)), "")


@dataclass(frozen=True, slots=True)
class Near:
    """A stored entry that is near to what was asked for, and all that differs."""

    key: str
    kind: str
    differences: tuple[Difference, ...]
    host: str = ""
    label: str = ""
    created: str = ""

    def to_json(self) -> Json:
        """Return it as plain JSON values."""
        return {
            "key": self.key,
            "kind": self.kind,
            "host": self.host,
            "label": self.label,
            "created": self.created,
            "differences": [difference.to_json() for difference in self.differences],
        }

    @classmethod
    def from_json(cls, value: Any) -> Near:
        """Read it; raises `WireError`."""
        if not isinstance(value, dict) or not isinstance(value.get("differences"), list):
            raise WireError("a near entry is a JSON object with differences")
        texts = {name: str(value.get(name) or "") for name in ("key", "kind", "host", "label", "created")}
        return cls(differences=tuple(map(Difference.from_json, value["differences"])), **texts)


def check_asked(document: Any) -> Json:
    """Return ``document`` if it can be compared; raises `WireError` for what no key document can be."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise WireError("a key document is a JSON object with a kind; `neff-cache show KEY --json` prints some")
    key_of(document)  # what has no canonical form has no key either
    return document


def differences(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return all that differs between two key documents, none exactly if their keys are equal."""
    found: list[Difference] = []
    for name in _names(stored, asked):
        left, right = stored.get(name, _MISSING), asked.get(name, _MISSING)
        if name == "flags" and _is_words(left) and _is_words(right):
            found += _flags(left, right)
        else:
            found += _values(name, left, right)
    return tuple(found)


def nearest(entries: Iterable[Mapping[str, Any]], asked: Mapping[str, Any], *, limit: int) -> list[Near]:
    """Return the ``limit`` entries (as entry.json) whose key documents are nearest to ``asked``, itself left out.

    Those of the same kind come first, then those with the fewest differences; among equals, the order given is kept.
    """
    counter = itertools.count()
    ranked: Iterator[tuple[int, int, Near]] = (
        (_distance(near), next(counter), near) for entry in entries if (near := _near(entry, asked)) is not None
    )
    return [near for _, _, near in heapq.nsmallest(limit, ranked, key=lambda item: item[:2])]


def shown(value: Any) -> str:
    """Return one side of a difference as people read it."""
    if value is None:
        return "(not there)"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return "differs (only a digest of the value is kept)"
    text = value if isinstance(value, str) else " ".join(value) if _is_words(value) else str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text)} characters)"


def _near(entry: Mapping[str, Any], asked: Mapping[str, Any]) -> Near | None:
    document = entry.get("key_document")
    if not isinstance(document, dict):
        return None
    found = differences(document, asked)
    if not found:
        return None
    producer = entry.get("producer")
    made = producer if isinstance(producer, dict) else {}
    return Near(
        key=str(entry.get("key")),
        kind=str(entry.get("kind")),
        differences=found,
        host=str(made.get("host") or ""),
        label=str(made.get("label") or ""),
        created=str(entry.get("created") or ""),
    )


def _distance(near: Near) -> int:
    distance = 0
    for difference in near.differences:
        distance += _MODULE_WEIGHT if difference.path == MODULE else 1
        distance += _OTHER_KIND if difference.path == "kind" else 0
    return distance


def _names(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys((*left, *right)))


def _values(path: str, left: Any, right: Any) -> Iterator[Difference]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in _names(left, right):
            yield from _values(f"{path}.{name}", left.get(name, _MISSING), right.get(name, _MISSING))
    elif isinstance(left, list) and isinstance(right, list):
        for number, (first, second) in enumerate(itertools.zip_longest(left, right, fillvalue=_MISSING)):
            yield from _values(f"{path}[{number}]", first, second)
    elif type(left) is not type(right) or left != right:
        yield Difference(path, None if left is _MISSING else left, None if right is _MISSING else right)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _flags(stored: list[str], asked: list[str]) -> Iterator[Difference]:
    left, right = _grouped(stored), _grouped(asked)
    changed = False
    for name in dict.fromkeys((*left, *right)):
        if left.get(name) != right.get(name):
            changed = True
            yield Difference(f"flags.{name}", _joined(left.get(name)), _joined(right.get(name)))
    if not changed and stored != asked:
        yield Difference(ORDER, stored, asked)


def _grouped(words: list[str]) -> dict[str, list[list[str]]]:
    """Return the flags by name, each with the values that follow it, in order."""
    groups: dict[str, list[list[str]]] = {}
    for word in words:
        if word.startswith("-") or not groups:
            name = "-O" if _LEVEL.fullmatch(word) else word.partition("=")[0]
            # the last name to be touched has to be the last of the dictionary: values follow it
            groups[name] = [*groups.pop(name, []), [word]]
        else:
            next(reversed(groups.values()))[-1].append(word)
    return groups


def _joined(uses: list[list[str]] | None) -> str | None:
    return None if uses is None else " ".join(word for use in uses for word in use)
