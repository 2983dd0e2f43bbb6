"""Whether a store keeps a name to its first writer. Many S3-compatible stores take the condition and ignore it."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from client.layout import TEMPORARY_PREFIX
from client.s3.errors import Reason, S3Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.s3.bucket import Bucket

_FIRST, _SECOND = b"1", b"2"


def probe(bucket: Bucket, done: Callable[[str], None] = lambda _: None) -> None:
    """Try the rights and the create-only writes that a cache needs, and turn on checksums where the store has them.

    One object and one multipart upload are made, and both are gone afterwards. Raises `S3Error`: the right that is
    missing, or what the store does instead of keeping a name to its first writer. ``done`` is told of each step that
    is behind us.
    """
    try:
        bucket.check(patient=True)
    except S3Error as error:
        if error.reason is not Reason.DENIED:
            raise
        raise S3Error(
            f"{error}; without it S3 answers 403 for absent objects too, and a miss looks like a missing right",
            error.reason,
            status=error.status,
            code=error.code,
        ) from error
    done("list")
    bucket.requests.checksums = True
    try:
        _try_writes(bucket, done)
    except S3Error as error:
        if error.reason is not Reason.REFUSED or not error.status:
            raise
        # checksums are a help that a store may refuse; create-only writes are none
        bucket.requests.checksums = False
        try:
            _try_writes(bucket, done)
        except S3Error as again:
            if again.reason is not Reason.REFUSED or not again.status:
                raise
            raise _not_create_only(bucket, f"refuses If-None-Match ({again.status} {again.code})") from again


def _try_writes(bucket: Bucket, done: Callable[[str], None]) -> None:
    name = TEMPORARY_PREFIX + secrets.token_hex(16)
    try:
        _try_object(bucket, name, done)
        _try_multipart(bucket, name)
        done("write in parts")
    except BaseException:
        # what went wrong first is what is told; a sweep finds what cannot be removed now
        with contextlib.suppress(S3Error):
            bucket.remove(name)
        raise
    bucket.remove(name)
    done("delete")


def _try_object(bucket: Bucket, name: str, done: Callable[[str], None]) -> None:
    if not bucket.create(name, _FIRST):
        raise _not_create_only(bucket, "refused to create an object that was not there")
    done("write")
    if bucket.create(name, _SECOND) or bucket.read(name) != _FIRST:
        raise _not_create_only(bucket, "ignored If-None-Match and replaced an object")
    done("read back")


def _try_multipart(bucket: Bucket, name: str) -> None:
    upload = bucket.multiparts.begin(name)
    try:
        part = bucket.multiparts.put_part(name, upload, 1, _SECOND)
        if bucket.multiparts.complete(name, upload, [part], len(_SECOND)):
            raise _not_create_only(bucket, "ignored If-None-Match when a multipart upload was completed")
    finally:
        bucket.multiparts.abort(name, upload)


def _not_create_only(bucket: Bucket, what: str) -> S3Error:
    return S3Error(
        f"{bucket.where} {what}: of two writers of one key the later would replace the entry of the first unnoticed; "
        "use a store that honours If-None-Match on PutObject and CompleteMultipartUpload, such as Amazon S3 or "
        "SeaweedFS, or a local folder",
        Reason.REFUSED,
    )
