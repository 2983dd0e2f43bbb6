"""The three ways in which jobs share: a server, a folder, a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server
from tests.support.sharing import LEASE_SECONDS, Shared
from tests.support.stored import FilesInBucket, FilesInFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["server", "folder", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    if request.param == "server":
        environment = {"NEFF_CACHE_LEASE_TTL_SECONDS": str(LEASE_SECONDS)}
        with running_server(tmp_path / "server", environment=environment) as server:
            yield Shared(server.url, FilesInFolder(server.data / "store"), server.config)
    elif request.param == "folder":
        folder = tmp_path / "shared"
        folder.mkdir()
        yield Shared(str(folder), FilesInFolder(folder))
    else:
        use_credentials(monkeypatch)
        url = seaweedfs().new_url()
        files = FilesInBucket(url)
        yield Shared(url, files)
        files.close()
