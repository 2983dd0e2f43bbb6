"""Multipart uploads: an object in parts, which appears whole when they are completed.

Only for objects whose name is the digest of their bytes. Some stores (SeaweedFS 4.48) look for the name and complete
the upload in two steps, so that of several uploads completed at the same moment more than one may win: harmless where
all of them are the same bytes, and the reason why an entry's description is always written in one request.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from client.s3.errors import Reason, S3Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.s3.requests import Requests

_CONFLICTS = 3
_CONFLICT = 409


class Part(NamedTuple):
    """A part that the store has: its number from 1, its tag, and its checksum if one was sent."""

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
    """An upload that was neither completed nor aborted: its object, its id, and when it began (epoch seconds)."""

    name: str
    upload: str
    begun: float


class Multiparts:
    """The multipart uploads of a bucket. Every method blocks and raises `S3Error`."""

    def __init__(self, requests: Requests, *, size_of: Callable[[str], int | None]) -> None:
        """``size_of`` tells the size of an object, or None."""
        self._requests = requests
        self._size_of = size_of

    def begin(self, name: str) -> str:
        """Begin an upload of an object and return its id."""
        checksum = {"ChecksumAlgorithm": "SHA256"} if self._requests.checksums else {}
        upload: str = self._requests.call("create_multipart_upload", name, **checksum)["UploadId"]
        return upload

    def put_part(self, name: str, upload: str, number: int, data: bytes | bytearray) -> Part:
        """Store one part; a part of the same number is replaced, so this may be repeated."""
        checksum = self._requests.checksum(data)
        answer = self._requests.call("upload_part", name, UploadId=upload, PartNumber=number, Body=data, **checksum)
        return Part(number, answer["ETag"], checksum.get("ChecksumSHA256"))

    def complete(self, name: str, upload: str, parts: list[Part], size: int) -> bool:
        """Make the parts the object, create-only; False if its name is taken. ``size``: of all parts together.

        After a try whose answer was lost, an object of that size counts as ours. The upload's id stays in use when this
        does not return True: `abort` frees it.
        """
        conflicts = 0

        def attempt(unsure: bool) -> bool:
            nonlocal conflicts
            try:
                answer = self._requests.once(
                    "complete_multipart_upload",
                    name,
                    UploadId=upload,
                    IfNoneMatch="*",
                    MultipartUpload={"Parts": [part.as_listed() for part in parts]},
                )
                _ = answer["ETag"]
            except S3Error as error:
                if error.reason is Reason.BUSY and error.status == _CONFLICT:
                    # Another writer is at the same name. S3 may have ended this upload with its answer, so that another
                    # try helps only if that writer fails.
                    conflicts += 1
                    if self._size_of(name) is not None:
                        return False
                    if conflicts == _CONFLICTS:
                        raise S3Error(str(error), Reason.REFUSED, status=error.status, code=error.code) from error
                elif error.reason is Reason.EXISTS:
                    return unsure and self._size_of(name) == size
                elif error.reason is Reason.ABSENT and unsure and self._size_of(name) == size:
                    # the try before completed it, and only its answer was lost
                    return True
                raise
            return True

        return self._requests.run(attempt)

    def abort(self, name: str, upload: str) -> None:
        """Drop an upload and its parts; one that has ended is no error."""
        try:
            self._requests.call("abort_multipart_upload", name, UploadId=upload)
        except S3Error as error:
            if error.reason is not Reason.ABSENT:
                raise

    def copy(self, origin: dict[str, str], size: int, target: str, *, size_of_parts: int) -> None:
        """Have the store copy ``origin`` (bucket and key) to ``target`` in parts, replacing it."""
        upload = self.begin(target)
        try:
            parts = []
            for number, start in enumerate(range(0, size, size_of_parts), 1):
                answer = self._requests.call(
                    "upload_part_copy",
                    target,
                    CopySource=origin,
                    CopySourceRange=f"bytes={start}-{min(start + size_of_parts, size) - 1}",
                    UploadId=upload,
                    PartNumber=number,
                )["CopyPartResult"]
                parts.append(Part(number, answer["ETag"], answer.get("ChecksumSHA256")).as_listed())
            self._requests.call("complete_multipart_upload", target, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            with contextlib.suppress(S3Error):
                self.abort(target, upload)
            raise

    def unfinished(self, folder: str = "", *, page_size: int = 1000) -> Iterator[Unfinished]:
        """Yield the uploads below the prefix, or below ``folder/`` in it, that have not ended, in no order."""
        below = f"{folder}/" if folder else ""
        more: dict[str, Any] = {}
        while True:
            page = self._requests.list("list_multipart_uploads", below, MaxUploads=page_size, **more)
            for item in page.get("Uploads", ()):
                name = item["Key"].removeprefix(self._requests.root)
                yield Unfinished(name, item["UploadId"], item["Initiated"].timestamp())
            # SeaweedFS gives only the second of the two
            markers = {"KeyMarker": page.get("NextKeyMarker"), "UploadIdMarker": page.get("NextUploadIdMarker")}
            more = {name: marker for name, marker in markers.items() if marker}
            if not page.get("IsTruncated") or not more:
                return
