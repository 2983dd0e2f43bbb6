"""Objects of a bucket by name, names being those of `client.layout` below the URL's prefix."""

from __future__ import annotations

import contextlib
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

    def open(self, name: str, *, fresh: bool = False) -> ObjectReader | None:
        """Ask for an object's bytes; None if it is absent. The answer's body is read by what is returned.

        ``fresh``: over a new connection, and only in the state that the object has by itself: an error page or another
        object's body in its place is an `S3Error`.
        """
        state: dict[str, Any] = {}
        if fresh:
            self.requests.connection.close()
            head = self._asked(name)
            if head is None:
                return None
            state = {"IfMatch": head["ETag"]} if "ETag" in head else {}
        try:
            answer = self.requests.call("get_object", name, **state)
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return None
            raise
        if state and answer.get("ETag") != state["IfMatch"]:
            answer["Body"].close()
            raise S3Error(f"{self.where} sends something else in an object's place", Reason.UNREACHABLE)
        same = {"IfMatch": answer["ETag"]} if "ETag" in answer else {}

        def read_on(start: int, stop: int) -> Any:
            part = self.requests.call("get_object", name, Range=f"bytes={start}-{stop - 1}", **same)
            if not part.get("ContentRange", "").startswith(f"bytes {start}-{stop - 1}/"):
                raise self._another_part(part)
            return part["Body"]

        read = self.requests.connection.read
        return ObjectReader(answer["Body"], int(answer["ContentLength"]), read_on=read_on, read=read)

    def _another_part(self, answer: dict[str, Any]) -> S3Error:
        answer["Body"].close()
        return S3Error(f"{self.where} does not send the part of an object that was asked for", Reason.REFUSED)

    def first_bytes(self, name: str, count: int) -> bytes | None:
        """Return the first ``count`` bytes of an object, all of them if it is shorter (and not empty); None: absent."""
        try:
            answer = self.requests.call("get_object", name, Range=f"bytes=0-{count - 1}")
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return None
            raise
        length = int(answer["ContentLength"])
        if length > count or not answer.get("ContentRange", "").startswith(f"bytes 0-{length - 1}/"):
            raise self._another_part(answer)
        with contextlib.closing(answer["Body"]) as body:
            data = b""
            while len(data) < length and (piece := self.requests.connection.read(body, length - len(data))):
                data += piece
        if len(data) < length:
            raise S3Error(f"{self.where} broke off the beginning of an object", Reason.UNREACHABLE)
        return data

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
        answer = self._asked(name)
        return None if answer is None else int(answer["ContentLength"])

    def _asked(self, name: str) -> dict[str, Any] | None:
        """Return what the store says of an object without its bytes, None if it is absent."""
        try:
            return self.requests.run(lambda _: self._head(name))
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return None
            raise

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
                answer = self.requests.once(
                    "put_object", name, Body=data, IfNoneMatch="*", **self.requests.checksum(data)
                )
                # else nothing was stored, whatever the status
                _ = answer["ETag"]
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
                _ = self.requests.call("copy_object", target, CopySource=origin)["CopyObjectResult"]["ETag"]
            else:
                self.multiparts.copy(origin, size, target, size_of_parts=self._copy_size)
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return False
            raise
        return True
