"""Make the database from the store: entries from entry.json, policy from its revisions.

Needs no empty database: what is known already stays. Generations of leases start from the clock, which is above every
generation there ever was; reports, plans and failures are not in the store and start anew.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import exists, select

from cache_server.access import Actor
from cache_server.database import entries
from cache_server.database.models import MetaRow
from cache_server.errors import Problem
from cache_server.stores.base import StoreError

if TYPE_CHECKING:
    from cache_server.address import Address
    from cache_server.database.engine import Database
    from cache_server.locking import KeyLocks
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.collection import Collection
    from cache_server.services.meta import Meta
    from cache_server.services.tokens import Tokens
    from cache_server.stores.base import Store
    from client.wire import Json

_log = structlog.get_logger("cache_server.rebuild")


@dataclass
class Rebuilt:
    """What a rebuild did: entries indexed anew, known before, set aside as unusable, not readable; rows of policy.

    ``gone``: rows of entries that the store does not hold any more, because the database is an older copy.
    """

    adopted: int = 0
    known: int = 0
    set_aside: int = 0
    unreadable: int = 0
    gone: int = 0
    policy_rows: int = 0

    def to_json(self) -> Json:
        """Return the counts as plain JSON values."""
        return asdict(self)


class Rebuilding:
    """Rebuild the index. Blocks for as long as a walk over the store takes."""

    def __init__(
        self,
        *,
        store: Store,
        database: Database,
        locks: KeyLocks,
        catalogue: Catalogue,
        meta: Meta,
        collection: Collection,
        tokens: Tokens,
    ) -> None:
        self._store = store
        self._database = database
        self._locks = locks
        self._catalogue = catalogue
        self._meta = meta
        self._collection = collection
        self._tokens = tokens

    def recover(self) -> bool:
        """See, when a server starts, whether the database was lost: it knows no policy, but the store does.

        Then take the policy over before any entry is adopted, and stop collection; entries are found by the sweep
        and by whoever asks for them. Return whether it was so.
        """
        with self._database.reading() as connection:
            if connection.execute(select(exists(select(MetaRow.row_id)))).scalar():
                return False
        restored = self._meta.restore()
        if restored:
            self._tokens.index()
            _log.warning("the database was lost: policy taken over from the store", rows=restored)
            self._pause()
        return restored > 0

    def _pause(self) -> None:
        """Stop collection: what was used, and when, is not in the store, and an operator must see the policy first."""
        self._collection.pause(
            "the database was made anew from the store: see that pins and quotas are right, then resume",
            by=Actor("rebuild-index"),
        )

    def rebuild(self) -> Rebuilt:
        """Index every entry of the store, and take over the newest revision of every row of policy."""
        done = Rebuilt()
        # policy first: no entry must stand without the pins that protect it
        done.policy_rows = self._meta.restore()
        self._tokens.index()
        self._pause()
        seen = set()
        for address in self._store.addresses():
            seen.add(address)
            try:
                with self._locks.hold(address):
                    known = self._catalogue.indexed(address) is not None
                    stood = known or self._store.read_entry(address) is not None
                    entry = self._catalogue.settle(address) if stood else None
            except (StoreError, Problem) as error:
                done.unreadable += 1
                _log.warning("key not indexed", address=str(address), error=str(error))
                continue
            if entry is not None and known:
                done.known += 1
            elif entry is not None:
                done.adopted += 1
            elif stood:
                done.set_aside += 1
        self._forget(seen, done)
        return done

    def _forget(self, seen: set[Address], done: Rebuilt) -> None:
        """Remove rows that no entry stands for: those of an older copy, whose entries were deleted since."""
        with self._database.reading() as connection:
            left = [address for address in entries.every(connection) if address not in seen]
        if left and not seen:
            _log.warning("the store is empty, and the database is not: is it the right one? no row was removed")
            return
        for address in left:
            try:
                with self._locks.hold(address):
                    # published meanwhile, by a server beside us, it stays
                    done.gone += self._catalogue.settle(address) is None
            except (StoreError, Problem) as error:
                done.unreadable += 1
                _log.warning("key not looked at", address=str(address), error=str(error))
