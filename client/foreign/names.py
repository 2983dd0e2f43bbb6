"""What a foreign entry is called, as its key document says it.

::

    {"schema": 1, "kind": "foreign", "layout": "npc", "name": "<that cache's own key or path>",
     "compiler_version": "2.27.5334.0+f702b353", "target": "trn2"}

The name becomes a path on some client's disk. So it is matched in full by the server before it stores the entry, and
again by every client before it writes a file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from client.errors import WireError
from client.key import SCHEMA, key_of
from client.names import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

NPC, LIBTORCH_LITE, TORCHNEURON = "npc", "libtorch-lite", "torchneuron"

_DIGEST = re.compile(r"[0-9a-f]{32}")
PATTERNS: Mapping[str, re.Pattern[str]] = {
    NPC: re.compile(r"neuronxcc-[0-9A-Za-z.+_-]+/MODULE_[0-9A-Za-z._]+\+[0-9a-f]{8}"),
    LIBTORCH_LITE: _DIGEST,
    TORCHNEURON: _DIGEST,
}
"""Names by layout: a closed set."""

_MEMBERS = ("layout", "name", "compiler_version", "target")


class ForeignName(NamedTuple):
    """One entry of another cache; ``name`` is that cache's own."""

    layout: str
    name: str
    compiler_version: str
    target: str

    def document(self) -> dict[str, Any]:
        """Return the key document."""
        return {"schema": SCHEMA, "kind": str(Kind.FOREIGN), **self._asdict()}

    @property
    def key(self) -> str:
        """The key: 64 hexadecimal digits."""
        return key_of(self.document())

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ForeignName:
        """Read a key document of kind ``foreign``; raises `WireError`."""
        members = [document.get(member) for member in _MEMBERS]
        for member, value in zip(_MEMBERS, members, strict=True):
            if not isinstance(value, str):
                raise WireError(f"a foreign key document holds a text called {member!r}")
        found = cls(*map(str, members))
        pattern = PATTERNS.get(found.layout)
        if pattern is None:
            raise WireError(f"foreign layout {found.layout!r}: expected one of {', '.join(PATTERNS)}")
        if not pattern.fullmatch(found.name):
            raise WireError(f"{found.name!r} is no name in the layout {found.layout}")
        return found
