"""What a store can do for a client without a server: create-only writes, and writes over a known state only.

Both are tried on one object below the prefix, which stays: where it exists, one refused write answers the first
question, and no right to remove is needed. A sweep may remove it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from client.errors import Refused
from client.layout import TEMPORARY_PREFIX
from client.s3.errors import Reason, S3Error
from client.transports.shared_files import NO_CREATE_ONLY

if TYPE_CHECKING:
    from client.s3.bucket import Bucket

_PROBE = f"{TEMPORARY_PREFIX}create-only"
_PROBE_DATA = b"neff-cache tries here whether this store keeps a name to its first writer\n"
_WRONG_ETAG = '"00000000000000000000000000000000"'


class Object(NamedTuple):
    """A small object: its bytes, the store's time of its last change in seconds, and the tag of its state."""

    data: bytes
    changed: float
    etag: str


def read(bucket: Bucket, name: str, limit: int) -> Object | None:
    """Ask once for an object of at most ``limit`` bytes; None if it is absent or larger. Raises `S3Error`."""
    try:
        answer = bucket.requests.once("get_object", name)
    except S3Error as error:
        if error.reason is Reason.ABSENT:
            return None
        raise
    body, size = answer["Body"], answer["ContentLength"]
    try:
        if size > limit:
            return None
        data = b""
        while len(data) < size and (piece := bucket.requests.connection.read(body, size - len(data))):
            data += piece
    finally:
        body.close()
    if len(data) < size or "LastModified" not in answer or "ETag" not in answer:
        raise S3Error(f"{bucket.where} gave no whole answer to get_object", Reason.UNREACHABLE)
    return Object(data, answer["LastModified"].timestamp(), answer["ETag"])


def create_only(bucket: Bucket) -> Literal[True] | Refused:
    """Return True, or the error that says why entries cannot be shared there; raises `S3Error` for anything else."""
    fault = "ignores If-None-Match and replaces objects"
    try:
        for _ in range(2):
            taken = not bucket.requests.run(lambda _: _create(bucket))
            if taken:
                return True
    except S3Error as error:
        if error.reason is not Reason.REFUSED or not error.status:
            raise
        # raises what is wrong, if it is not the condition
        bucket.requests.call("put_object", _PROBE, Body=_PROBE_DATA)
        fault = f"refuses If-None-Match ({error.status} {error.code})"
    return Refused(
        f"{bucket.where} {fault}, so that entries cannot be shared safely there: use a store that honours it, "
        "such as Amazon S3, or a cache server",
        status=0,
        name=NO_CREATE_ONLY,
    )


def _create(bucket: Bucket) -> bool:
    """Create the probe's object; False if it was there, even if a try of ours whose answer was lost has made it."""
    try:
        bucket.requests.once("put_object", _PROBE, Body=_PROBE_DATA, IfNoneMatch="*")
    except S3Error as error:
        if error.reason is Reason.EXISTS:
            return False
        raise
    return True


def if_match(bucket: Bucket) -> bool:
    """Return whether the store replaces an object of the state that is named, and no other."""
    found = bucket.requests.run(lambda _: read(bucket, _PROBE, len(_PROBE_DATA)))
    if found is None:  # swept meanwhile: read-then-write will do
        return False
    for etag, expected in ((_WRONG_ETAG, False), (found.etag, True)):
        try:
            bucket.requests.call("put_object", _PROBE, Body=_PROBE_DATA, IfMatch=etag)
            written = True
        except S3Error as error:
            if error.reason.is_passing:
                raise
            written = False
        if written is not expected:
            return False
    return True
