"""Pins: entries that are never collected, named one by one, by their label, or by a plan."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from cache_server.database import policy
from cache_server.database.models import PlanRow
from cache_server.errors import Problem

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from cache_server.access import Actor
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.database.policy import Stored
    from cache_server.locking import KeyLocks
    from cache_server.services.audit import Audit
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.meta import Meta
    from client.wire import Json

MAX_LABEL = 255
"""Characters of a label that the index holds and pins compare."""


class Pins:
    """Pins of projects. Blocks: worker threads only. Answers whether a pin is new, or was there to be removed."""

    def __init__(self, *, database: Database, locks: KeyLocks, catalogue: Catalogue, meta: Meta, audit: Audit) -> None:
        self._database = database
        self._audit = audit
        self._locks = locks
        self._catalogue = catalogue
        self._meta = meta

    def pin_entry(self, address: Address, *, by: Actor) -> bool:
        """Pin an entry; raises `Problem` ``not_found`` if there is none. Once this returns it is not collected."""
        # under the key's lock, as collection is: it has gone before, or finds the pin
        with self._locks.hold(address):
            if self._catalogue.settle(address) is None:
                raise Problem("not_found")
            key = [str(address.kind), address.key]
            with self._database.transaction() as session:
                value = {"what": "entry", "kind": str(address.kind), "key": address.key, "keys": [key], "by": by.name}
                return self._put(session, address.project, _entry_row(address), value, by)

    def unpin_entry(self, address: Address, *, by: Actor) -> bool:
        """Remove an entry's own pin."""
        return self._remove(address.project, _entry_row(address), by)

    def pin_label(self, project: str, label: str, *, by: Actor) -> bool:
        """Pin every entry of a label, those to come included; raises `Problem` ``invalid`` for one that is too long."""
        if not 0 < len(label) <= MAX_LABEL or not label.isprintable():
            raise Problem("invalid", f"a label that is pinned has 1 to {MAX_LABEL} printable characters")
        with self._database.transaction() as session:
            value = {"what": "label", "label": label, "by": by.name}
            return self._put(session, project, _label_row(project, label), value, by)

    def unpin_label(self, project: str, label: str, *, by: Actor) -> bool:
        """Remove a label's pin."""
        return self._remove(project, _label_row(project, label), by)

    def pin_plan(self, project: str, name: str, *, by: Actor) -> bool:
        """Pin every entry of a stored plan; raises `Problem` ``not_found`` if there is none.

        The pin holds the keys themselves: plans are not in the store, and a rebuilt database must not lose the pin.
        """
        with self._database.transaction() as session:
            keys = _keys_of_plan(session, project, name)
            if keys is None:
                raise Problem("not_found", f"there is no plan {name} in this project")
            value = {"what": "plan", "plan": name, "keys": keys, "by": by.name}
            return self._put(session, project, _plan_row(project, name), value, by)

    def unpin_plan(self, project: str, name: str, *, by: Actor) -> bool:
        """Remove a plan's pin."""
        return self._remove(project, _plan_row(project, name), by)

    def plan_changed(self, project: str, name: str, *, by: Actor) -> None:
        """Have the plan's pin, if there is one, hold what the plan names now."""
        with self._database.transaction() as session:
            row = _plan_row(project, name)
            pinned = policy.value(session, policy.PINS, row)
            keys = _keys_of_plan(session, project, name)
            if pinned is not None and keys is not None and pinned["keys"] != keys:
                self._put(session, project, row, {**pinned, "keys": keys}, by)

    def list(self, project: str) -> list[Json]:
        """Return the project's pins, without the keys of plans: those are in the plans."""
        with self._database.reading() as connection:
            return [_shown(pin) for pin in policy.rows(connection, policy.PINS, project)]

    def _put(self, session: Session, project: str, row: str, value: Json, by: Actor) -> bool:
        before = policy.value(session, policy.PINS, row)
        if before != value:
            self._meta.write(session, policy.PINS, row, value, project=project)
            self._audit.change(session, by, "pin.set", project=project, detail=_named(value))
        return before is None

    def _remove(self, project: str, row: str, by: Actor) -> bool:
        with self._database.transaction() as session:
            before = policy.value(session, policy.PINS, row)
            if before is None:
                return False
            self._meta.write(session, policy.PINS, row, None, project=project)
            self._audit.change(session, by, "pin.remove", project=project, detail=_named(before))
            return True


def _named(pin: Json) -> Json:
    """Return what a pin is on."""
    return {what: pin[what] for what in ("kind", "key", "label", "plan") if what in pin}


def _keys_of_plan(session: Session, project: str, name: str) -> list[list[str]] | None:
    plan = session.get(PlanRow, (project, name))
    if plan is None:
        return None
    lines = (json.loads(line) for line in plan.body.split("\n") if line)
    return [list(item) for item in sorted({(str(line["kind"]), str(line["key"])) for line in lines})]


def _shown(pin: Stored) -> Json:
    value = {name: found for name, found in pin.value.items() if name != "keys"}
    return {**value, "entries": len(pin.value["keys"])} if "plan" in pin.value else value


def _entry_row(address: Address) -> str:
    return f"{address.project}.entry.{address.kind}.{address.key}"


def _label_row(project: str, label: str) -> str:
    # a label may hold anything, the name of a file may not
    return f"{project}.label.{hashlib.sha256(label.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _plan_row(project: str, name: str) -> str:
    return f"{project}.plan.{name}"
