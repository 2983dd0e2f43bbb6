"""Publish: the outputs are there already; entry.json goes last; then the lease ends; then waiters wake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from cache_server.database import entries, leases
from cache_server.errors import Problem
from cache_server.services.entry_checks import check_entry, missing_outputs, wrong_sizes

if TYPE_CHECKING:
    from cache_server.access import Actor
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.locking import KeyLocks
    from cache_server.services.audit import Audit
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.trust import Trust
    from cache_server.services.waiting import Waiters
    from cache_server.stores.base import Store
    from client.wire import Entry, Json


class Published(NamedTuple):
    """The entry that stands now, and whether it is the one that was sent."""

    entry: Entry
    created: bool


class Publishing:
    """Publish entries. Blocks: worker threads only."""

    def __init__(
        self,
        *,
        store: Store,
        database: Database,
        locks: KeyLocks,
        catalogue: Catalogue,
        waiters: Waiters,
        audit: Audit,
        trust: Trust,
    ) -> None:
        self._store = store
        self._database = database
        self._locks = locks
        self._catalogue = catalogue
        self._waiters = waiters
        self._audit = audit
        self._trust = trust

    def publish(self, address: Address, entry: Entry, *, by: Actor, action: str = "entry.publish") -> Published:
        """Let ``entry`` stand under ``address``, unless one stands there already: compilers are not deterministic, and
        the first entry wins. Either way a lease on the key ends and its waiters wake.

        Raises `Problem`: ``invalid`` or ``wrong_key`` for an entry that does not belong there, ``blob_missing`` for
        outputs that are not stored, ``signature_required`` or ``signature_invalid`` by what the project asks for.
        ``action``: what the audit trail calls it.
        """  # noqa: D205 - one sentence needs the room
        check_entry(address, entry)
        self._trust.admit(entry)
        with self._locks.hold(address):
            published = self._publish(address, entry, by, action)
        self._waiters.wake(address, published.entry)
        return published

    def _publish(self, address: Address, entry: Entry, by: Actor, action: str) -> Published:
        stored = self._catalogue.settle(address)
        if stored is None:
            missing = missing_outputs(self._store, address, entry)
            if missing:
                raise Problem("blob_missing", f"not stored with the stated size: {', '.join(missing)}")
            for sentence in wrong_sizes(self._store, address, entry).values():
                raise Problem("invalid", sentence)
            data = json.dumps(entry.to_json(), indent=1).encode()
            if not self._store.create_entry(address, data):
                # a server on another database, or a client on the store itself, was faster
                stored = self._catalogue.settle(address)
                if stored is None:
                    raise Problem("busy", "another writer's entry was found damaged; publish again")
        with self._database.transaction() as session:
            if entries.indexed(session, address) is None:
                now = self._database.now(session)
                # every output was hashed while it was taken in
                entries.insert(session, stored or entry, now=now, checked=now)
            if stored is None:
                self._audit.change(session, by, action, address=address, detail=_summary(entry))
            leases.end(session, address)
            self._waiters.announce(session, address)
        return Published(stored or entry, created=stored is None)


def _summary(entry: Entry) -> Json:
    """Return what the audit trail says of an entry that may be gone when somebody reads it."""
    last = entry.promotions[-1] if entry.promotions else {}
    return {
        **({"from": last.get("from"), "promoted_by": last.get("by")} if last else {}),
        **({"key_id": entry.signature.get("key_id")} if entry.signature else {}),
        "label": entry.producer.label,
        "host": entry.producer.host,
        "outputs": {output.name: output.sha256 for output in entry.outputs},
    }
