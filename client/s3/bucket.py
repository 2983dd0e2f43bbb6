"""Objects of a bucket by name, names being those of `client.layout` below the URL's prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from client.s3.errors import Reason, S3Error
from client.s3.multipart import Multiparts
from client.s3.reader import ObjectReader
from client.s3.requests import Requests
from client.s3.retry import RetryPolicy
from client.s3.sdk import ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.s3.url import BucketUrl

COPY_SIZE = 256 << 20
"""Bytes that the store is asked to copy in one request: few enough to be done within the time limit of a read."""


class Listed(NamedTuple):
    """An object in a listing: its name, its size in bytes, seconds since the epoch of its last change."""

    name: str
    size: int
    modified: float


class Bucket:
    """One bucket. Every method blocks, retries passing errors under one deadline, and raises `S3Error`.

    Safe from several threads at once.
    """

    def __init__(
        self,
        url: BucketUrl,
        *,
        settings: ConnectionSettings | None = None,
        policy: RetryPolicy | None = None,
        copy_size: int = COPY_SIZE,
    ) -> None:
        """Raise `client.errors.ConfigurationError` if boto3 is missing or the AWS settings cannot be followed."""
        self.url = url
        self.requests = Requests(url, settings or ConnectionSettings(), policy or RetryPolicy())
        self.multiparts = Multiparts(self.requests, size_of=self.size)
        self._copy_size = copy_size

    @property
    def where(self) -> str:
        """The bucket and its endpoint, in words for a message."""
        return self.requests.where

    def close(self) -> None:
        """Close idle connections."""
        self.requests.connection.close()

    def check(self, *, patient: bool) -> None:
        """Return if the bucket is there, answers (``patient``: perhaps after a while), and may be listed."""
        self.requests.list("list_objects_v2", "", patient=patient, MaxKeys=1)

    def open(self, name: str) -> ObjectReader | None:
        """Ask for an object's bytes; None if it is absent. The answer's body is read by what is returned."""
        try:
            answer = self.requests.call("get_object", name)
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return None
            raise
        same = {"IfMatch": answer["ETag"]} if "ETag" in answer else {}

        def read_on(start: int, stop: int) -> Any:
            part = self.requests.call("get_object", name, Range=f"bytes={start}-{stop - 1}", **same)
            if not part.get("ContentRange", "").startswith(f"bytes {start}-{stop - 1}/"):
                part["Body"].close()
                raise S3Error(f"{self.where} does not send the part of an object that was asked for", Reason.REFUSED)
            return part["Body"]

        read = self.requests.connection.read
        return ObjectReader(answer["Body"], answer["ContentLength"], read_on=read_on, read=read)

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes, for objects that are small; None if it is absent."""
        opened = self.open(name)
        if opened is None:
            return None
        try:
            return b"".join(opened.chunks())
        finally:
            opened.close()

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes, or None."""
        try:
            answer = self.requests.run(lambda _: self._head(name))
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return None
            raise
        return int(answer["ContentLength"])

    def _head(self, name: str) -> dict[str, Any]:
        try:
            return self.requests.once("head_object", name)
        except S3Error as error:
            if error.reason.is_passing:
                raise
            # An answer to HEAD has no body: a missing bucket looks like a missing object, an expired token like a bad
            # request. The same question as a GET of one byte is answered in words.
            try:
                self.requests.once("get_object", name, Range="bytes=0-0")["Body"].close()
            except S3Error as explained:
                raise explained from error
            raise

    def objects(self, prefix: str) -> Iterator[Listed]:
        """Yield all objects whose names begin with ``prefix``, in the store's order."""
        for page in self._pages(prefix):
            for item in page.get("Contents", ()):
                name = item["Key"].removeprefix(self.requests.root)
                yield Listed(name, item["Size"], item["LastModified"].timestamp())

    def folders(self, folder: str) -> Iterator[str]:
        """Yield the names of the folders directly below ``folder``, which is ``""`` or ends in a slash."""
        for page in self._pages(folder, Delimiter="/"):
            for item in page.get("CommonPrefixes", ()):
                yield item["Prefix"].removeprefix(self.requests.root + folder).rstrip("/")

    def _pages(self, prefix: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        more: dict[str, Any] = {}
        while True:
            page = self.requests.list("list_objects_v2", prefix, **parameters, **more)
            yield page
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def presign(self, name: str, seconds: int, *, content_encoding: str | None = None) -> str:
        """Return a URL that lets anyone GET the object for ``seconds`` (or until our own credentials end).

        ``content_encoding``: what the answer is to call its encoding.
        """
        return self.requests.connection.presign(self.requests.root + name, seconds, content_encoding)

    def create(self, name: str, data: bytes | bytearray) -> bool:
        """Create an object whole; False if its name is taken by other bytes than these."""

        def attempt(unsure: bool) -> bool:
            try:
                self.requests.once("put_object", name, Body=data, IfNoneMatch="*", **self.requests.checksum(data))
            except S3Error as error:
                if error.reason is not Reason.EXISTS:
                    raise
                # the try before may have been the one that took the name
                return unsure and self.size(name) == len(data) and self.read(name) == data
            return True

        return self.requests.run(attempt)

    def remove(self, name: str) -> None:
        """Remove an object; an absent one is no error."""
        try:
            self.requests.call("delete_object", name)
        except S3Error as error:
            if error.reason is not Reason.ABSENT:
                raise

    def copy(self, source: str, target: str) -> bool:
        """Have the store copy an object, replacing ``target``; False if ``source`` is absent."""
        size = self.size(source)
        if size is None:
            return False
        origin = {"Bucket": self.url.bucket, "Key": self.requests.root + source}
        try:
            if size <= self._copy_size:
                self.requests.call("copy_object", target, CopySource=origin)
            else:
                self.multiparts.copy(origin, size, target, size_of_parts=self._copy_size)
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return False
            raise
        return True
