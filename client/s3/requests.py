"""Requests to one bucket for names below one prefix, tried again where that helps."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from client.s3.sdk import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.s3.retry import RetryPolicy
    from client.s3.sdk import ConnectionSettings
    from client.s3.url import BucketUrl

_Answer = TypeVar("_Answer")


class Requests:
    """What `client.s3.bucket` and `client.s3.multipart` ask the store through. Raises `S3Error` throughout.

    ``checksums``: send the SHA-256 of what is written along, for the store to verify. Off until `client.s3.probe` has
    seen that the store takes them. Without them nothing is lost but an early warning: an output is named by its digest,
    and whoever reads it hashes it again.
    """

    def __init__(self, url: BucketUrl, settings: ConnectionSettings, policy: RetryPolicy) -> None:
        """Raise `client.errors.ConfigurationError` if boto3 is missing or the AWS settings cannot be followed."""
        self.connection = Connection(url, settings)
        self.checksums = False
        self.root = f"{url.prefix}/" if url.prefix else ""
        self._policy = policy
        self._impatient = replace(policy, seconds=0.0)

    @property
    def where(self) -> str:
        """The bucket and its endpoint, in words for a message."""
        return self.connection.where

    def run(self, attempt: Callable[[bool], _Answer], *, patient: bool = True) -> _Answer:
        """Call ``attempt`` until it succeeds, fails for good, or time is up; see `RetryPolicy.run`.

        Not ``patient``: once, or twice if the credentials ran out.
        """
        used = self.connection.generation

        def renew() -> None:
            self.connection.renew(used)

        return (self._policy if patient else self._impatient).run(attempt, renew=renew)

    def once(self, operation: str, name: str, **parameters: Any) -> dict[str, Any]:
        """Ask about the object ``name`` once."""
        return self.connection.call(operation, Key=self.root + name, **parameters)

    def call(self, operation: str, name: str, **parameters: Any) -> dict[str, Any]:
        """Ask about the object ``name``, again if that helps."""
        return self.run(lambda _: self.once(operation, name, **parameters))

    def list(self, operation: str, prefix: str, *, patient: bool = True, **parameters: Any) -> dict[str, Any]:
        """Ask for one page of what begins with ``prefix``."""

        def attempt(_unsure: bool) -> dict[str, Any]:
            page = self.connection.call(operation, Prefix=self.root + prefix, **parameters)
            # else not from S3: a page of HTML reads as a list of nothing
            _ = page["IsTruncated"]
            return page

        return self.run(attempt, patient=patient)

    def checksum(self, data: bytes | bytearray) -> dict[str, str]:
        """Return the parameter that carries the checksum of ``data``, if checksums are on."""
        if not self.checksums:
            return {}
        return {"ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode()}
