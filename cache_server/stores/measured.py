"""A store that counts, times and traces what passes through it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from cache_server.stores.base import StoreError, StoreFullError
from cache_server.tracing.base import NO_TRACING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cache_server.address import Address
    from cache_server.metrics import Metrics
    from cache_server.stores.base import Blob, MetaName, OpenOutput, Store, StoredFile, Upload
    from cache_server.tracing.base import Tracing


class MeasuredStore:
    """`cache_server.stores.base.Store` around another one."""

    def __init__(self, store: Store, metrics: Metrics, tracing: Tracing = NO_TRACING) -> None:
        self._store = store
        self._metrics = metrics
        self._tracing = tracing

    @contextlib.contextmanager
    def _measured(self, call: str) -> Iterator[None]:
        metrics, outcome = self._metrics, "ok"
        begin = metrics.monotonic()
        try:
            with self._tracing.span(f"store.{call}"):
                yield
        except StoreError as error:
            outcome = "full" if isinstance(error, StoreFullError) else "error"
            raise
        finally:
            metrics.store_calls.labels(call, outcome).inc()
            metrics.store_seconds.labels(call).observe(metrics.monotonic() - begin)

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._store.location

    def open(self) -> None:
        """Prepare the store."""
        self._store.open()

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def check(self) -> None:
        """See whether the store answers."""
        with self._measured("check"):
            self._store.check()

    def read_entry(self, address: Address) -> bytes | None:
        """Read entry.json."""
        with self._measured("read_entry"):
            return self._store.read_entry(address)

    def create_entry(self, address: Address, data: bytes) -> bool:
        """Write entry.json."""
        with self._measured("create_entry"):
            return self._store.create_entry(address, data)

    def stored_size(self, blob: Blob) -> int | None:
        """Look for an output."""
        with self._measured("stored_size"):
            return self._store.stored_size(blob)

    def open_output(self, blob: Blob, *, fresh: bool = False) -> OpenOutput | None:
        """Open an output."""
        with self._measured("open_output"):
            return self._store.open_output(blob, fresh=fresh)

    def first_bytes(self, blob: Blob, count: int) -> bytes | None:
        """Read the beginning of an output."""
        with self._measured("first_bytes"):
            return self._store.first_bytes(blob, count)

    def presign(self, blob: Blob, seconds: int) -> str | None:
        """Sign an address."""
        with self._measured("presign"):
            return self._store.presign(blob, seconds)

    def begin_upload(self, blob: Blob) -> Upload:
        """Begin an upload, whose commit is measured as well."""
        with self._measured("begin_upload"):
            return _MeasuredUpload(self, self._store.begin_upload(blob))

    def files(self, address: Address) -> list[StoredFile]:
        """List a key's files."""
        with self._measured("files"):
            return self._store.files(address)

    def remove(self, address: Address, file_name: str) -> None:
        """Remove a file."""
        with self._measured("remove"):
            self._store.remove(address, file_name)

    def set_aside(self, address: Address, file_names: list[str], label: str) -> None:
        """Set files aside."""
        with self._measured("set_aside"):
            self._store.set_aside(address, file_names, label)

    def addresses(self) -> Iterator[Address]:
        """Walk over all keys."""
        return self._store.addresses()

    def create_meta(self, name: MetaName, data: bytes) -> bool:
        """Write a revision of policy."""
        with self._measured("create_meta"):
            return self._store.create_meta(name, data)

    def read_meta(self, name: MetaName) -> bytes | None:
        """Read a revision of policy."""
        with self._measured("read_meta"):
            return self._store.read_meta(name)

    def meta(self, table: str = "", row: str = "") -> Iterator[MetaName]:
        """Walk over revisions of policy."""
        return self._store.meta(table, row)

    def free_bytes(self) -> int | None:
        """Ask for the room that is left."""
        with self._measured("free_bytes"):
            return self._store.free_bytes()

    def walk(self) -> Iterator[StoredFile]:
        """Walk over all files."""
        return self._store.walk()

    def unfinished(self) -> Iterator[StoredFile]:
        """Walk over uploads that did not end."""
        return self._store.unfinished()

    def sweep_uploads(self, before: float) -> int:
        """Remove dead uploads."""
        with self._measured("sweep_uploads"):
            return self._store.sweep_uploads(before)

    def sweep_quarantine(self, before: float) -> int:
        """Remove old quarantined entries."""
        with self._measured("sweep_quarantine"):
            return self._store.sweep_quarantine(before)


class _MeasuredUpload:
    def __init__(self, store: MeasuredStore, upload: Upload) -> None:
        self._store = store
        self._upload = upload

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._upload.write(data)

    def commit(self, blob: Blob) -> bool:
        with self._store._measured("commit"):  # noqa: SLF001 - one class in two parts
            return self._upload.commit(blob)

    def abort(self) -> None:
        self._upload.abort()
