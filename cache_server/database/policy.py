"""Rows of policy as the database holds them: quotas, rules, pins, switches. Written by `cache_server.services.meta`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select

from cache_server.collection_rules import Limit, PinSet, Policy, Rules
from cache_server.database.models import MetaRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.collection_rules import Named
    from client.wire import Json

QUOTAS = "quotas"
RULES = "rules"
PINS = "pins"
SWITCHES = "switches"
TRUST = "trust"
TRUSTED_KEYS = "trusted_keys"
TOKENS = "tokens"

IRREVOCABLE = frozenset({TOKENS, TRUSTED_KEYS})
"""Tables whose rows have a member ``revoked``: once it is set in any revision, it is set in all that follow."""

SERVER = "server"
"""Row of what concerns all projects; rows of one project begin with `PROJECT`, so that none can have this name."""
PROJECT = "project."
COLLECTION = "collection"
"""The switch that stops collection."""

REMOVED = "null"
"""The document of a row that was removed: its revisions go on if it comes back."""


def row_of(project: str | None) -> str:
    """Return the row that holds a project's quota or rules; None: the server's."""
    return SERVER if project is None else f"{PROJECT}{project}"


class Stored(NamedTuple):
    """A row that stands: its value, and the project it concerns, if it is not the whole server."""

    row: str
    project: str | None
    value: Json
    updated: float


_COLUMNS = (MetaRow.row_id, MetaRow.project, MetaRow.document, MetaRow.updated)


def rows(source: Connection | Session, table: str, project: str | None = None) -> list[Stored]:
    """Return the rows of a table that stand, or those of one project, by name."""
    statement = select(*_COLUMNS).where(MetaRow.table_name == table, MetaRow.document != REMOVED)
    if project is not None:
        statement = statement.where(MetaRow.project == project)
    found = source.execute(statement.order_by(MetaRow.row_id))
    return [Stored(row, of, json.loads(document), updated) for row, of, document, updated in found]


def value(source: Connection | Session, table: str, row: str) -> Json | None:
    """Return the value of one row, or None."""
    statement = select(MetaRow.document).where(MetaRow.table_name == table, MetaRow.row_id == row)
    document = source.execute(statement).scalar()
    found: Json | None = None if document is None else json.loads(document)
    return found


def version(source: Connection | Session, table: str, project: str) -> tuple[int, int]:
    """Return what differs after every change to the project's rows of a table."""
    statement = select(func.count(), func.coalesce(func.sum(MetaRow.revision), 0)).where(
        MetaRow.table_name == table, MetaRow.project == project
    )
    count, revisions = source.execute(statement).one()
    return int(count), int(revisions)


def limit(source: Connection | Session, project: str | None) -> Limit:
    """Return the quota of a project, or the server's limit."""
    return limit_from(value(source, QUOTAS, row_of(project)) or {})


def limit_from(document: Json) -> Limit:
    """Read a quota."""
    return Limit(document.get("max_bytes"), document.get("max_entries"))


def rules_from(document: Json) -> Rules:
    """Read rules."""
    return Rules(document.get("unused_seconds"), document.get("keep_versions"), document.get("oldest") or {})


def rules_to_json(rules: Rules) -> Json:
    """Return rules as they are stored."""
    return {
        "unused_seconds": rules.unused_seconds,
        "keep_versions": rules.keep_versions,
        "oldest": dict(rules.oldest),
    }


def pin_set(pins: Iterable[Stored]) -> PinSet:
    """Return what the pins of one project hold."""
    keys: set[tuple[str, str]] = set()
    labels: set[str] = set()
    for pin in pins:
        keys.update((kind, key) for kind, key in pin.value.get("keys", ()))
        if "label" in pin.value:
            labels.add(pin.value["label"])
    return PinSet(frozenset(keys), frozenset(labels))


def policy(
    source: Connection | Session, leased: Collection[Named], grace_seconds: float, project: str | None = None
) -> Policy:
    """Return all policy that stands, or that of one project alone, without the server's limit."""
    pins: dict[str, list[Stored]] = {}
    for pin in rows(source, PINS, project):
        pins.setdefault(str(pin.project), []).append(pin)
    quotas = {str(row.project): limit_from(row.value) for row in rows(source, QUOTAS, project) if row.project}
    rules: dict[str, Any] = {row.row: rules_from(row.value) for row in rows(source, RULES)}
    return Policy(
        server=Limit() if project is not None else limit(source, None),
        quotas=quotas,
        common_rules=rules.pop(SERVER, Rules()),
        rules={row.removeprefix(PROJECT): found for row, found in rules.items()},
        pins={name: pin_set(found) for name, found in pins.items()},
        leased=leased,
        grace_seconds=grace_seconds,
    )
