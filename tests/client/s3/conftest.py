from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from client.s3.bucket import Bucket
from client.s3.sdk import ConnectionSettings
from client.s3.url import BucketUrl
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.s3_faults import PassedTime, fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.s3 import S3Server
    from tests.support.s3_faults import FaultProxy


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch)


@pytest.fixture
def server() -> S3Server:
    return seaweedfs()


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server) as running:
        yield running


@pytest.fixture
def time() -> PassedTime:
    return PassedTime()


@pytest.fixture
def open_bucket(time: PassedTime) -> Iterator[Callable[..., Bucket]]:
    """Return a function that opens the bucket at a URL; closed at the end."""
    with ExitStack() as stack:

        def opened(url: str, **options: Any) -> Bucket:
            bucket = Bucket(
                BucketUrl.parse(url),
                policy=time.policy(),
                settings=ConnectionSettings(connect_seconds=2, read_seconds=5),
                **options,
            )
            stack.callback(bucket.close)
            return bucket

        yield opened


@pytest.fixture
def bucket(open_bucket: Callable[..., Bucket], proxy: FaultProxy, server: S3Server) -> Bucket:
    """Return a bucket behind the proxy, with a prefix of its own."""
    prefix = BucketUrl.parse(server.new_url()).prefix
    return open_bucket(proxy.url(prefix))
