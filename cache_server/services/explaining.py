"""The stored entries that are nearest to a key document: why a key missed.

A bounded look at the newest entries, of the document's own kind first: this answers a person, who asks rarely, and must
not cost the jobs anything that can be noticed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from cache_server.database.models import EntryRow, EntryState
from client.explaining import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sqlalchemy import Connection

    from client.explaining import Json, Near

SCAN = 2000
"""Entries of a kind that are compared at most: some 10 MB of documents."""
LONGEST = 64 << 10
"""Characters of the longest document that is compared: ours have some thousand, and 2000 of these are held at once."""


def nearest_entries(
    connection: Connection,
    project: str,
    asked: Json,
    *,
    kinds: Collection[str],
    without: Collection[str],
    limit: int,
) -> list[Near]:
    """Return up to ``limit`` near entries of the project among ``kinds``, those with keys ``without`` left out.

    Other kinds are looked at only where the document's own has nothing. Blocks: worker threads only.
    """
    own = {asked["kind"]} & set(kinds)
    for group in (own, set(kinds) - own):
        found = nearest(_newest(connection, project, group, set(without)), asked, limit=limit) if group else []
        if found:
            return found
    return []


def _newest(connection: Connection, project: str, kinds: set[str], without: set[str]) -> Iterator[dict[str, Any]]:
    # in one piece: there is no transaction here that a cursor of the server could live in
    rows = connection.execute(
        select(EntryRow.key, EntryRow.document)
        .where(EntryRow.project == project, EntryRow.kind.in_(sorted(kinds)), EntryRow.state == EntryState.READY)
        .where(func.length(EntryRow.document) <= LONGEST)
        .order_by(EntryRow.indexed.desc())
        .limit(SCAN)
    )
    for row in rows:
        if row.key not in without:
            yield json.loads(row.document)
