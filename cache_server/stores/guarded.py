"""A store that changes a key only while the lock on it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache_server.stores.measured import MeasuredStore
from cache_server.tracing.base import NO_TRACING

if TYPE_CHECKING:
    from cache_server.address import Address
    from cache_server.locking import KeyLocks
    from cache_server.metrics import Metrics
    from cache_server.stores.base import Store
    from cache_server.tracing.base import Tracing


class GuardedStore(MeasuredStore):
    """`MeasuredStore` that asks for the lock before each step that would harm the next holder's work.

    A server that lost its connection to the database has lost its locks, and may learn it late: in the middle of a
    removal it would take away what another server has published since.
    """

    def __init__(self, store: Store, metrics: Metrics, locks: KeyLocks, tracing: Tracing = NO_TRACING) -> None:
        super().__init__(store, metrics, tracing)
        self._locks = locks

    def create_entry(self, address: Address, data: bytes) -> bool:
        """Write entry.json."""
        self._locks.check()
        return super().create_entry(address, data)

    def remove(self, address: Address, file_name: str) -> None:
        """Remove a file."""
        self._locks.check()
        super().remove(address, file_name)

    def set_aside(self, address: Address, file_names: list[str], label: str) -> None:
        """Set files aside."""
        self._locks.check()
        super().set_aside(address, file_names, label)
