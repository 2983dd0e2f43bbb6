"""Checks of policy: the revisions in the store against each other and against the database."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from sqlalchemy import select

from cache_server.database.models import MetaRow
from cache_server.services.invariants import Finding
from cache_server.stores.base import MetaName
from client.layout import meta_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

    from cache_server.stores.base import Store


def meta_findings(connection: Connection | None, store: Store, names: Iterable[MetaName]) -> Iterator[Finding]:
    """Yield what is broken among the revisions ``names``; ``connection`` None leaves the database out.

    That the store is ahead of the database is no fault: a crash between the two leaves it so, and nobody was told. A
    revision that seems to be missing is asked for once more: it may have been written since ``names`` was listed.
    """
    revisions: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for name in names:
        revisions[name.table, name.row].add(name.revision)
        try:
            readable = isinstance(json.loads(store.read_meta(name) or b""), dict)
        except (ValueError, RecursionError):
            readable = False
        if not readable:
            yield Finding("meta_unreadable", name.path)
    for (table, row), found in sorted(revisions.items()):
        for revision in sorted(set(range(1, max(found))) - found):
            if store.read_meta(MetaName(table, row, revision)) is None:
                yield Finding("meta_gap", meta_folder(table, row), f"revision {revision} is missing")
    if connection is not None:
        known = connection.execute(select(MetaRow.table_name, MetaRow.row_id, MetaRow.revision)).all()
        for table, row, revision in known:
            if revision and store.read_meta(MetaName(table, row, revision)) is None:
                yield Finding("meta_lost", meta_folder(table, row), f"revision {revision} is not in the store")
