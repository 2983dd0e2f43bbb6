"""Objects of a bucket by name, names being those of `client.layout` below the URL's prefix."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from client.s3.errors import Reason, S3Error
from client.s3.reader import ObjectReader
from client.s3.retry import RetryPolicy
from client.s3.sdk import Connection, ConnectionSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.s3.url import BucketUrl

COPY_SIZE = 256 << 20
"""Bytes that the store is asked to copy in one request: short enough to be done within the time limit of a read."""

_CONFLICTS = 3


class Listed(NamedTuple):
    """An object in a listing: its name, its size in bytes, seconds since the epoch of its last change."""

    name: str
    size: int
    modified: float


class Part(NamedTuple):
    """A part of a multipart upload that the store has: number from 1, its tag, its checksum if one was asked for."""

    number: int
    etag: str
    sha256: str | None = None

    def as_listed(self) -> dict[str, Any]:
        """Return the part as completing the upload wants it."""
        listed: dict[str, Any] = {"PartNumber": self.number, "ETag": self.etag}
        if self.sha256 is not None:
            listed["ChecksumSHA256"] = self.sha256
        return listed


class Unfinished(NamedTuple):
    """A multipart upload that was neither completed nor aborted."""

    name: str
    upload: str
    begun: float


class Bucket:
    """One bucket. Every method blocks, retries passing errors under one deadline, and raises `S3Error`.

    ``checksums`` sends the SHA-256 of what is written along, which the store then verifies; only for stores that
    `client.s3.probe` has found to do so. Without it nothing is lost but the early warning: an output is named by its
    digest, and whoever reads it hashes it again.
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
        self.checksums = False
        self._connection = Connection(url, settings or ConnectionSettings())
        self._policy = policy or RetryPolicy()
        self._copy_size = copy_size
        self._root = f"{url.prefix}/" if url.prefix else ""

    @property
    def where(self) -> str:
        """The bucket and its endpoint, in words for a message."""
        return self._connection.where

    @property
    def endpoint(self) -> str:
        """The URL that requests go to."""
        return self._connection.endpoint

    def close(self) -> None:
        """Close idle connections."""
        self._connection.close()

    def _run(self, attempt: Callable[[bool], Any]) -> Any:
        used = self._connection.generation

        def renew() -> None:
            self._connection.renew(used)

        return self._policy.run(attempt, renew=renew)

    def _call(self, operation: str, name: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._run(
            lambda _: self._connection.call(operation, Key=self._root + name, **parameters)
        )
        return answer

    def _checksum(self, data: bytes | bytearray) -> dict[str, str]:
        if not self.checksums:
            return {}
        return {"ChecksumSHA256": base64.b64encode(hashlib.sha256(data).digest()).decode()}

    # reading

    def open(self, name: str) -> ObjectReader | None:
        """Ask for an object's bytes; None if it is absent. The answer's body is read by what is returned."""
        try:
            answer = self._call("get_object", name)
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return None
            raise

        same = {"IfMatch": answer["ETag"]} if "ETag" in answer else {}

        def read_on(start: int, stop: int) -> Any:
            part = self._call("get_object", name, Range=f"bytes={start}-{stop - 1}", **same)
            if not part.get("ContentRange", "").startswith(f"bytes {start}-{stop - 1}/"):
                part["Body"].close()
                raise S3Error(f"{self.where} does not send the part of an object that was asked for", Reason.REFUSED)
            return part["Body"]

        return ObjectReader(answer["Body"], answer["ContentLength"], read_on=read_on, read=self._connection.read)

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
            answer = self._run(lambda _: self._head(self._root + name))
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return None
            raise
        return int(answer["ContentLength"])

    def _head(self, key: str) -> dict[str, Any]:
        try:
            return self._connection.call("head_object", Key=key)
        except S3Error as error:
            if error.reason.is_passing:
                raise
            # An answer to HEAD has no body: a missing bucket looks like a missing object, an expired token like a bad
            # request. The same question as a GET of one byte is answered in words.
            try:
                self._connection.call("get_object", Key=key, Range="bytes=0-0")["Body"].close()
            except S3Error as explained:
                raise explained from error
            raise

    def objects(self, folder: str) -> Iterator[Listed]:
        """Yield all objects whose names begin with ``folder`` ("", ``a/`` or a part of a name), in the store's order."""
        for page in self._pages(folder):
            for item in page.get("Contents", ()):
                name = item["Key"].removeprefix(self._root)
                yield Listed(name, item["Size"], item["LastModified"].timestamp())

    def folders(self, folder: str) -> Iterator[str]:
        """Yield the names of the folders directly below ``folder``."""
        for page in self._pages(folder, Delimiter="/"):
            for item in page.get("CommonPrefixes", ()):
                yield item["Prefix"].removeprefix(self._root + folder).rstrip("/")

    def _pages(self, folder: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        more: dict[str, Any] = {}
        while True:
            page = self._list({"Prefix": self._root + folder, **parameters, **more})
            yield page
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _list(self, parameters: dict[str, Any]) -> dict[str, Any]:
        page: dict[str, Any] = self._run(lambda _: self._connection.call("list_objects_v2", **parameters))
        return page

    def check(self) -> None:
        """Return if the bucket is there, answers now, and may be listed."""
        self._list({"Prefix": self._root, "MaxKeys": 1})

    def presign(self, name: str, seconds: int) -> str:
        """Return a URL that lets anyone GET the object for ``seconds`` (or until our own credentials end)."""
        return self._connection.presign(self._root + name, seconds)

    # writing

    def create(self, name: str, data: bytes | bytearray) -> bool:
        """Create an object whole; False if its name is taken by other bytes than these."""

        def attempt(unsure: bool) -> bool:
            try:
                self._connection.call(
                    "put_object", Key=self._root + name, Body=data, IfNoneMatch="*", **self._checksum(data)
                )
            except S3Error as error:
                if error.reason is not Reason.EXISTS:
                    raise
                # the try before may have been the one that took the name
                return unsure and self.size(name) == len(data) and self.read(name) == bytes(data)
            return True

        created: bool = self._run(attempt)
        return created

    def remove(self, name: str) -> None:
        """Remove an object; an absent one is no error."""
        try:
            self._call("delete_object", name)
        except S3Error as error:
            if error.reason is not Reason.ABSENT:
                raise

    def copy(self, source: str, target: str) -> bool:
        """Have the store copy an object, replacing ``target``; False if ``source`` is absent."""
        size = self.size(source)
        if size is None:
            return False
        origin = {"Bucket": self.url.bucket, "Key": self._root + source}
        try:
            if size <= self._copy_size:
                self._call("copy_object", target, CopySource=origin)
            else:
                self._copy_in_parts(origin, size, target)
        except S3Error as error:
            if error.reason is Reason.ABSENT:
                return False
            raise
        return True

    def _copy_in_parts(self, origin: dict[str, str], size: int, target: str) -> None:
        upload = self._call("create_multipart_upload", target)["UploadId"]
        try:
            parts = []
            for number, start in enumerate(range(0, size, self._copy_size), 1):
                answer = self._call(
                    "upload_part_copy",
                    target,
                    CopySource=origin,
                    CopySourceRange=f"bytes={start}-{min(start + self._copy_size, size) - 1}",
                    UploadId=upload,
                    PartNumber=number,
                )
                parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
            self._call("complete_multipart_upload", target, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            self.abort(target, upload)
            raise

    # multipart uploads

    def begin(self, name: str) -> str:
        """Begin a multipart upload of an object and return its id."""
        checksum = {"ChecksumAlgorithm": "SHA256"} if self.checksums else {}
        upload: str = self._call("create_multipart_upload", name, **checksum)["UploadId"]
        return upload

    def put_part(self, name: str, upload: str, number: int, data: bytes | bytearray) -> Part:
        """Store one part; a part of the same number is replaced, so this may be repeated."""
        checksum = self._checksum(data)
        answer = self._call("upload_part", name, UploadId=upload, PartNumber=number, Body=data, **checksum)
        return Part(number, answer["ETag"], checksum.get("ChecksumSHA256"))

    def complete(self, name: str, upload: str, parts: list[Part], size: int) -> bool:
        """Make the parts the object, create-only; False if its name is taken. ``size``: that of all parts together.

        The upload's id stays in use when this is not True: `abort` frees it.
        """
        conflicts = 0

        def attempt(unsure: bool) -> bool:
            nonlocal conflicts
            try:
                self._connection.call(
                    "complete_multipart_upload",
                    Key=self._root + name,
                    UploadId=upload,
                    IfNoneMatch="*",
                    MultipartUpload={"Parts": [part.as_listed() for part in parts]},
                )
            except S3Error as error:
                if error.reason is Reason.BUSY and error.status == 409:  # noqa: PLR2004 - HTTP's own number
                    # Another writer is at the same name. S3 may have ended this upload with its answer, so that trying
                    # again helps only if that writer fails.
                    conflicts += 1
                    if self.size(name) is not None:
                        return False
                    if conflicts < _CONFLICTS:
                        raise
                    raise S3Error(str(error), Reason.REFUSED, status=error.status, code=error.code) from error
                if error.reason is Reason.EXISTS:
                    return unsure and self.size(name) == size
                if error.reason is Reason.ABSENT and unsure and self.size(name) == size:
                    # the try before completed it, and only its answer was lost
                    return True
                raise
            return True

        completed: bool = self._run(attempt)
        return completed

    def abort(self, name: str, upload: str) -> None:
        """Drop a multipart upload and its parts; one that has ended is no error."""
        try:
            self._call("abort_multipart_upload", name, UploadId=upload)
        except S3Error as error:
            if error.reason is not Reason.ABSENT:
                raise

    def unfinished(self) -> Iterator[Unfinished]:
        """Yield the multipart uploads below the prefix that have not ended."""
        more: dict[str, Any] = {}
        while True:
            parameters = {"Prefix": self._root, **more}
            page = self._run(lambda _, p=parameters: self._connection.call("list_multipart_uploads", **p))
            for item in page.get("Uploads", ()):
                name = item["Key"].removeprefix(self._root)
                yield Unfinished(name, item["UploadId"], item["Initiated"].timestamp())
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
