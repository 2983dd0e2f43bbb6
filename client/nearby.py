"""Where near entries are looked for: at the server, in a shared folder, in this machine's node tier."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from client.explaining import nearest
from client.listing import folder_entries, node_entries
from client.names import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from client.explaining import Near
    from client.node.tier import NodeTier
    from client.server_calls import ServerCalls
    from client.wire import Entry

SCAN = 5000
"""Entries of a tier or folder that are compared at most."""
_MAX_WITHOUT = 4096


@dataclass(frozen=True)
class Nearby:
    """The places to look in; those that are None are not there."""

    calls: ServerCalls | None
    folder: Path | None
    tier: NodeTier | None
    project: str

    def nearest(self, document: Mapping[str, Any], *, without: Collection[str], limit: int) -> tuple[str, list[Near]]:
        """Return where near entries were found, and up to ``limit`` of them, those with keys ``without`` left out.

        The shared cache comes first, because it knows what other hosts compiled. Raises
        `client.errors.TransportError` if it cannot be asked.
        """
        for where, look in self._places():
            found = look(document, set(without), limit)
            if found:
                return where, found
        return "", []

    def _places(self) -> Iterator[tuple[str, Callable[[Mapping[str, Any], set[str], int], list[Near]]]]:
        calls, folder, tier = self.calls, self.folder, self.tier
        if calls is not None:
            yield (
                calls.address,
                lambda document, without, limit: calls.explain(
                    document, without=sorted(without)[:_MAX_WITHOUT], limit=limit
                ),
            )
        if folder is not None:
            yield folder.as_uri(), _local(lambda kinds: folder_entries(folder, self.project, kinds))
        if tier is not None:
            yield f"node tier {tier.tree.root}", _local(lambda kinds: node_entries(tier, kinds))


def _local(
    entries: Callable[[Collection[Kind]], Iterator[Entry]],
) -> Callable[[Mapping[str, Any], set[str], int], list[Near]]:
    def look(document: Mapping[str, Any], without: set[str], limit: int) -> list[Near]:
        own = [kind for kind in Kind if kind == document.get("kind")]
        for kinds in (own, [kind for kind in Kind if kind not in own]):
            stored = (entry.to_json() for entry in islice(entries(kinds), SCAN) if entry.key not in without)
            found = nearest(stored, document, limit=limit)
            if found:
                return found
        return []

    return look
