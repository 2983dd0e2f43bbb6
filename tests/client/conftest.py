from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from client.cache import Cache
from client.settings import Settings
from tests.client.shared_store import SharedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def store() -> SharedStore:
    return SharedStore()


@pytest.fixture
def make_cache(tmp_path: Path) -> Iterator[Callable[..., Cache]]:
    """Caches with a node tier each (``node="name"``; None: no tier), closed at the end."""
    made: list[Cache] = []

    def make(store: SharedStore | None = None, *, node: str | None = "node", **settings: Any) -> Cache:
        settings.setdefault("upload_grace", 20.0)  # so that what was compiled is published, unless a test asks for less
        options = {
            name: settings.pop(name) for name in ("clock", "sleep", "now", "files", "upload_grace") if name in settings
        }
        cache = Cache(
            Settings(node_dir=None if node is None else tmp_path / node, **settings),
            open_transport=None if store is None else lambda: store,
            **options,
        )
        made.append(cache)
        return cache

    yield make
    for cache in made:
        cache.close()
