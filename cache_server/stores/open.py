"""Which store the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache_server.stores.local import LocalStore
from cache_server.stores.s3 import open_s3_store

if TYPE_CHECKING:
    from cache_server.settings import Settings
    from cache_server.stores.base import Store


def new_store(settings: Settings) -> Store:
    """Return the store, not yet opened; raises `client.errors.ConfigurationError` for an address that is none."""
    if settings.bucket_url is not None:
        return open_s3_store(settings.bucket_url, threads=settings.threads, largest=settings.max_output_bytes)
    return LocalStore(settings.store_path())
