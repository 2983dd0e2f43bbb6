"""A shared cache that is a bucket: ``s3://bucket/prefix[?endpoint=…&region=…]``, with no server.

Credentials, region and endpoint (``AWS_ENDPOINT_URL_S3``) come from the standard AWS settings; writes are create-only
by ``If-None-Match`` (`client.transports.s3_bucket`); all else is said by `client.transports.direct`.
"""

from __future__ import annotations

import importlib.util
import random
import time
from typing import TYPE_CHECKING

from client.errors import ConfigurationError
from client.s3.url import BucketUrl
from client.transports.direct import DirectTransport
from client.transports.direct_lease import TTL_SECONDS
from client.transports.limits import DEFAULT_LIMITS
from client.transports.s3_bucket import SharedBucket
from client.transports.s3_entry import S3Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.names import Kind
    from client.s3.retry import RetryPolicy
    from client.transports.limits import Limits


class S3Transport(DirectTransport):
    """`client.transports.base.Transport` over the bucket at ``url``; see `DirectTransport` for the other arguments.

    ``limits`` and ``policy`` bound single requests and how often they are tried. Raises `ConfigurationError` for a
    malformed URL and if boto3 is not installed; AWS settings that cannot be followed are found at the first request.
    """

    def __init__(
        self,
        url: str,
        project: str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        policy: RetryPolicy | None = None,
        lease_seconds: float = TTL_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        super().__init__(project, lease_seconds=lease_seconds, monotonic=monotonic, sleep=sleep, uniform=uniform)
        # Only looked for: a job whose programs are all in the node tier need not wait for it to be imported.
        if importlib.util.find_spec("botocore") is None:
            raise ConfigurationError(
                "a bucket (s3://) needs boto3, which is not installed: pip install 'neff-cache[s3]'"
            )
        self._limits = limits
        self._bucket = SharedBucket(BucketUrl.parse(url), limits=limits, policy=policy, monotonic=monotonic)

    @property
    def address(self) -> str:
        """The bucket's URL, which never holds keys."""
        return str(self._bucket.url)

    def close(self) -> None:
        """Drop connections and threads."""
        self._bucket.close()

    def _at(self, kind: Kind, key: str) -> S3Entry:
        until = self._waiting.monotonic() + self._limits.upload
        return S3Entry(self._bucket, self._project, kind, key, until=until)
