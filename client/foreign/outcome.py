"""What a transfer did, whichever way it went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from client.foreign.scan import Why

if TYPE_CHECKING:
    from client.foreign.names import ForeignName
    from client.foreign.scan import LeftOut

_FAULTS = frozenset({Why.DAMAGED, Why.MISSING, Why.UNTRUSTED})


@dataclass(slots=True)
class Outcome:
    """``moved`` were transferred (in a dry run: would be), ``present`` were there already.

    ``differing`` of the latter are another build of the same program than the one that would have been written.
    """

    moved: list[ForeignName] = field(default_factory=list)
    present: list[ForeignName] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    bytes: int = 0

    def add(self, other: Outcome) -> None:
        """Add what another transfer did."""
        self.moved += other.moved
        self.present += other.present
        self.differing += other.differing
        self.left_out += other.left_out
        self.bytes += other.bytes

    @property
    def is_whole(self) -> bool:
        """Whether nothing was damaged or missing that should have been transferred."""
        return not any(each.why in _FAULTS for each in self.left_out)

    @property
    def counts(self) -> Counter[Why]:
        """How many were left out, by reason."""
        return Counter(each.why for each in self.left_out)

    def to_json(self, verb: str) -> dict[str, Any]:
        """Return it as plain JSON values; ``verb`` names what was done, such as ``imported``."""
        return {
            verb: len(self.moved),
            "bytes": self.bytes,
            "present": len(self.present),
            "differing": self.differing,
            "left_out": [{"why": str(each.why), "what": each.what, "text": each.text} for each in self.left_out],
        }
