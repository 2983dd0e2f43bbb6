"""What is true of a store and its database while nothing is wrong, and how a breach is reported."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client.wire import Json

INVARIANTS = {
    "entry_unreadable": "Every entry.json parses.",
    "entry_misplaced": "Every entry.json stands under its own names, and its key is the hash of its document.",
    "output_missing": "Every output that an entry names is stored.",
    "output_size": "Every output has the stored size that its entry states.",
    "output_digest": "Every output hashes to the digest that its entry states (looked at with --deep).",
    "unreadable": "Every file can be read. What could not be read is not judged.",
    "row_missing": "Every entry in the store has a row in the database.",
    "row_unreadable": "Every row's document parses.",
    "row_without_entry": "Every ready row has its entry.json in the store.",
    "row_differs": "A row says what its entry.json says.",
    "removal_unfinished": "No row stays `deleting` or `quarantined`.",
    "lease_on_published": "No lease is held on a key whose entry is ready.",
    "orphan": "No output that no entry names is older than a day.",
    "temporary": "No upload that ended without commit is left.",
    "unknown_file": "Every file in the store belongs to its layout.",
    "meta_gap": "The revisions of a row of policy have no gaps.",
    "meta_unreadable": "Every revision of a row of policy parses.",
    "meta_lost": "Every revision of a row of policy that the database holds is in the store.",
    "database_missing": "There is a database. Without one, `neff-cache admin rebuild-index` makes it from the store.",
}
"""Names of invariants, part of the interface of ``fsck --json``, each with what it demands."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A broken invariant: its name in `INVARIANTS`, the key or file it was found at, and what was found."""

    invariant: str
    where: str
    detail: str = ""

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.invariant}: {self.where}" + (f": {self.detail}" if self.detail else "")


@dataclass
class Report:
    """What a check saw. ``pending`` are outputs and uploads that may still become entries; sizes are in bytes."""

    findings: list[Finding] = field(default_factory=list)
    entries: int = 0
    files: int = 0
    stored_bytes: int = 0
    quarantined: int = 0
    pending: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether every invariant holds."""
        return not self.findings

    def to_json(self) -> Json:
        """Return the report as plain JSON values."""
        return {**asdict(self), "clean": self.is_clean}
