"""Repair what `cache_server.services.fsck` found, by the same steps and under the same locks as a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from cache_server.address import Address
from cache_server.database import leases
from cache_server.errors import Problem
from cache_server.stores.base import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cache_server.database.engine import Database
    from cache_server.locking import KeyLocks
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.invariants import Finding
    from cache_server.services.suspicion import Suspicion
    from cache_server.services.sweeping import Sweeping

_SETTLED = frozenset({"output_missing", "output_size", "row_missing", "row_without_entry", "removal_unfinished"})
_INDEXED_ANEW = frozenset({"entry_unreadable", "entry_misplaced", "row_unreadable", "row_differs"})
_SWEPT = frozenset({"orphan", "temporary"})

_log = structlog.get_logger("cache_server.repair")


class Repairing:
    """Repair findings. Blocks. What cannot be repaired safely is left: unknown files, I/O errors, gaps in policy."""

    def __init__(
        self,
        *,
        database: Database,
        locks: KeyLocks,
        catalogue: Catalogue,
        suspicion: Suspicion,
        sweeping: Sweeping,
    ) -> None:
        self._database = database
        self._locks = locks
        self._catalogue = catalogue
        self._suspicion = suspicion
        self._sweeping = sweeping

    def repair(self, findings: Iterable[Finding], *, alone: bool) -> None:
        """Repair what can be; a further check tells what is left. ``alone``: no server runs."""
        swept = False
        for finding in findings:
            if finding.invariant in _SWEPT:
                swept = True
                continue
            try:
                self._repair(finding)
            except (StoreError, Problem) as error:
                _log.warning("not repaired", finding=str(finding), error=str(error))
        if swept:
            self._sweeping.recover(alone=alone)
            self._sweeping.sweep()

    def _repair(self, finding: Finding) -> None:
        if finding.invariant in _SETTLED:
            address = _address(finding)
            with self._locks.hold(address):
                self._catalogue.settle(address)
        elif finding.invariant in _INDEXED_ANEW:
            address = _address(finding)
            with self._locks.hold(address):
                self._catalogue.index_anew(address)
        elif finding.invariant == "output_digest":
            self._suspicion.suspect(_address(finding), finding.detail)
        elif finding.invariant == "lease_on_published":
            with self._database.transaction() as session:
                leases.end(session, _address(finding))


def _address(finding: Finding) -> Address:
    return Address.parse(*finding.where.split("/"))
