"""The key document and the key: SHA-256 of the document's canonical JSON (RFC 8785).

The document names everything the artifact depends on and is stored with the entry, so that a miss can be explained.
The hash is a total function of exactly the bytes that are compiled: nothing is resolved, and nothing is reduced to a
difference from the compiler's defaults, because those move between releases.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from client.errors import ConfigurationError, WireError
from client.flags import UNKEYED_WORDS, keyed_flags
from client.names import Kind, check_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "SCHEMA",
    "UNKEYED_WORDS",
    "CompilerIdentity",
    "Ir",
    "Json",
    "KeyDocument",
    "canonical_json",
    "check_document",
    "key_of",
    "keyed_flags",
    "normalise_compiler_version",
]

SCHEMA = 1

_VERSION = re.compile(r"(?<![0-9.])([0-9]+\.[0-9]+\.[0-9]+(?:\.[0-9]+)?)\+([0-9A-Za-z]+)")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ir:
    """The compiled module: ``sha256`` is over exactly the bytes the compiler is started on."""

    dialect: str
    format: str
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class CompilerIdentity:
    """Name and exact build of a compiler."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class KeyDocument:
    """All that an artifact depends on. Immutable; `key` is computed from `to_json` alone.

    It keeps a copy of ``extra``: callers change their settings while they compile.
    """

    kind: Kind
    ir: Ir
    compiler: CompilerIdentity
    target: str
    logical_cores: int
    flags: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep what was given, whatever becomes of it."""
        object.__setattr__(self, "extra", _copied(dict(self.extra)))

    def to_json(self) -> Json:
        """Return the document as plain JSON values."""
        return {
            "schema": SCHEMA,
            "kind": str(self.kind),
            "ir": {
                "dialect": self.ir.dialect,
                "format": self.ir.format,
                "version": self.ir.version,
                "sha256": self.ir.sha256,
            },
            "compiler": {"name": self.compiler.name, "version": self.compiler.version},
            "target": self.target,
            "logical_cores": self.logical_cores,
            "flags": list(self.flags),
            "kernels": list(self.kernels),
            "extra": dict(self.extra),
        }

    @property
    def key(self) -> str:
        """The key: 64 hexadecimal digits."""
        return key_of(self.to_json())


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def canonical_json(value: Any) -> bytes:
    """Return ``value`` as canonical JSON by RFC 8785; raise `WireError` for what JSON cannot hold exactly."""
    import rfc8785  # noqa: PLC0415 - a hit by key alone never needs it

    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise WireError(f"this value has no canonical JSON form: {error}") from error


def key_of(document: Mapping[str, Any]) -> str:
    """Return the key of a key document of any kind."""
    return hashlib.sha256(canonical_json(dict(document))).hexdigest()


def check_document(document: Any, *, kind: Kind, key: str) -> Json:
    """Return ``document`` if it is one of this schema and kind whose hash is ``key``, else raise `WireError`."""
    check_digest(key)
    if not isinstance(document, dict):
        raise WireError(f"a key document is a JSON object, not {type(document).__name__}")
    if document.get("schema") != SCHEMA:
        raise WireError(f"key document schema {document.get('schema')!r} is not known here: expected {SCHEMA}")
    if document.get("kind") != str(kind):
        raise WireError(f"key document is of kind {document.get('kind')!r} but stands under {str(kind)!r}")
    found = key_of(document)
    if found != key:
        raise WireError(f"the key document hashes to {found}, not to {key}")
    return document


def normalise_compiler_version(text: str) -> str:
    """Return ``X.Y.Z[.W]+hash`` out of whatever the compiler printed or its package says.

    Raises `ConfigurationError` if there is no such version in ``text``: a guess here would mix compilers in one key.
    """
    match = _VERSION.search(text)
    if match is None:
        shown = text.strip()[:80]
        raise ConfigurationError(
            f"no compiler version in {shown!r}: expected X.Y.Z+hash; try `neuronx-cc --version` in a shell"
        )
    return f"{match[1]}+{match[2]}"
