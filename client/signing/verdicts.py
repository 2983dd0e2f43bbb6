"""Verdicts on many entries, gathered: of a bundle, of a plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from client.errors import SignatureError

if TYPE_CHECKING:
    from client.signing.trust import TrustList
    from client.wire import Entry


class Verdicts:
    """Call it with each entry. ``refused`` holds a sentence for each that nobody in the list vouches for.

    ``project``: the one that entries are going to, if it is not their own.
    """

    def __init__(self, trusted: TrustList, project: str | None = None) -> None:
        self._trusted = trusted
        self._project = project
        self._signers: Counter[str] = Counter()
        self.refused: list[str] = []

    def __call__(self, entry: Entry) -> None:
        """Judge an entry; raises `client.errors.ConfigurationError` if signatures cannot be checked here."""
        judged = entry if self._project is None else replace(entry, project=self._project)
        try:
            signer = self._trusted.check(judged)
        except SignatureError as error:
            self.refused.append(f"{entry.project}/{entry.kind}/{entry.key}: {error}")
        else:
            self._signers[f"{signer.name} ({signer.key_id})"] += 1

    def lines(self) -> list[str]:
        """Return the verdicts as lines for people: who signed how many, then what is refused."""
        signed = [f"signed by {signer}: {count} entries" for signer, count in sorted(self._signers.items())]
        return [*signed, *(f"refused {sentence}" for sentence in self.refused)]

    def to_json(self) -> dict[str, Any]:
        """Return the verdicts as plain JSON values."""
        return {"signers": dict(sorted(self._signers.items())), "refused": self.refused}
