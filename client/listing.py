"""What lies in a node tier or in a shared folder, read without taking anything along."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from client import layout
from client.errors import WireError
from client.names import Kind, check_kind
from client.node.permissions import UntrustedError
from client.node.tier import ENTRY_FILE, MAX_ENTRY_FILE
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from client.node.tier import NodeTier

_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_WHOLE = 64
_FOLDER = re.compile(r"[0-9a-f]{2}")


class KeyPattern(NamedTuple):
    """A key as people name it: ``kind/`` may stand before it, and it may be cut after 6 digits or more."""

    kind: Kind | None
    digits: str

    @classmethod
    def parse(cls, text: str) -> KeyPattern:
        """Read it; raises `WireError`."""
        kind, slash, digits = text.rpartition("/")
        if not _PREFIX.fullmatch(digits):
            raise WireError(f"{text!r} is no key: expected [kind/] and 6 to 64 lower-case hexadecimal digits")
        return cls(check_kind(kind) if slash else None, digits)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that it may be of."""
        return tuple(Kind) if self.kind is None else (self.kind,)

    @property
    def is_whole(self) -> bool:
        """Whether it is a key, not the beginning of one."""
        return len(self.digits) == _WHOLE


def node_entries(tier: NodeTier, kinds: Collection[Kind] = tuple(Kind), prefix: str = "") -> Iterator[Entry]:
    """Yield the entries of a node tier whose keys begin with ``prefix``; what cannot be read is passed over.

    Programs are not read, so that nothing is said about their soundness. Raises `OSError` and `UntrustedError` if the
    tier itself cannot be read; one that was never made is empty.
    """
    with suppress(FileNotFoundError), tier.tree.directory():
        for kind in kinds:
            for folder in _matching(_names(tier, kind.value), prefix[:2]):
                for key in sorted(_names(tier, kind.value, folder)):
                    if key.startswith(prefix) and len(key) == _WHOLE:
                        entry = _node_entry(tier, kind, key)
                        if entry is not None:
                            yield entry


def folder_entries(
    root: Path, project: str, kinds: Collection[Kind] = tuple(Kind), prefix: str = ""
) -> Iterator[Entry]:
    """Yield the entries of a shared folder, as `node_entries` does."""
    for kind in kinds:
        base = root / project / kind.value
        for folder in _matching([path.name for path in base.glob("??")], prefix[:2]):
            for path in sorted((base / folder).glob(f"{prefix}*/{layout.ENTRY_FILE}")):
                with suppress(OSError, ValueError, RecursionError):
                    if path.is_file() and path.stat().st_size <= MAX_ENTRY_FILE:
                        entry = Entry.from_json(json.loads(path.read_bytes()))
                        if (entry.kind, entry.key) == (kind, path.parent.name):
                            yield entry


def _matching(folders: list[str], start: str) -> list[str]:
    return sorted(name for name in folders if _FOLDER.fullmatch(name) and name.startswith(start))


def _names(tier: NodeTier, *levels: str) -> list[str]:
    with suppress(OSError, UntrustedError), tier.tree.directory(tier.project, *levels) as (descriptor, _):
        return tier.tree.files.list(descriptor)
    return []


def _node_entry(tier: NodeTier, kind: Kind, key: str) -> Entry | None:
    files = tier.tree.files
    with (
        suppress(OSError, UntrustedError, ValueError, RecursionError),
        tier.tree.directory(tier.project, kind, key[:2], key) as (directory, trust),
    ):
        descriptor = files.open_file(ENTRY_FILE, directory)
        try:
            trust.check(files.status(descriptor), ENTRY_FILE)
            return Entry.from_json(json.loads(files.read(descriptor, MAX_ENTRY_FILE)))
        finally:
            files.close(descriptor)
    return None
