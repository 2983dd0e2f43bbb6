"""The bucket behind ``s3://`` as one process uses it: made at first use, bounded in time, probed once.

Adds to `client.s3` what a client without a server needs: the store's time, conditional replacement, and errors as
transports raise them. What the store can do is found out by `client.transports.s3_probes`.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

from client.errors import ConfigurationError, Denied, LeaseLost, Refused, TransportError, Unreachable
from client.layout import is_entry_file
from client.s3.bucket import Bucket
from client.s3.errors import Reason, S3Error
from client.s3.retry import RetryPolicy
from client.s3.sdk import ConnectionSettings
from client.s3.upload import PART_SIZE, ObjectUpload, PartPool, part_size
from client.transports import s3_probes
from client.transports.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.s3.reader import ObjectReader
    from client.s3.url import BucketUrl
    from client.transports.limits import Limits

RETRY_SECONDS, LONGEST_PAUSE = 4.0, 1.0
"""Within which the last try of a request begins: one that no one hears costs a job two connects, one that is not
answered a single wait. A store that throttles for longer is done without. And the longest pause between two tries: one
of a ``Retry-After`` beyond the last try would lose what a second try saves."""

_PART_THREADS = 4
_CONNECTIONS = 16


class SharedBucket:
    """Objects of one bucket below one prefix. Methods raise `TransportError`; safe to use from several threads.

    Nothing is connected before the first request, after `close`, or in a forked child before its own first request.
    ``limits.connect`` and ``limits.answer`` bound each single wait on a socket, so that 30 seconds without progress are
    never reached: a body that stands still is asked for anew, twice. Looking up a name takes as long as the system lets
    it. No part of an upload begins later than ``until`` says.
    """

    def __init__(
        self,
        url: BucketUrl,
        *,
        limits: Limits = DEFAULT_LIMITS,
        policy: RetryPolicy | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        size_of_parts: int = PART_SIZE,
    ) -> None:
        self.url = url
        self._limits = limits
        self._policy = policy or RetryPolicy(seconds=RETRY_SECONDS, longest=LONGEST_PAUSE)
        self._monotonic = monotonic
        self._size_of_parts = size_of_parts
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._bucket: Bucket | None = None
        self._pool: PartPool | None = None
        self._creates_only: Literal[True] | Refused | Denied | None = None
        self._honours_if_match: bool | None = None

    def _mine(self) -> Bucket:
        if self._pid != os.getpid():
            self._begin()  # the parent's connections, threads and locks are not ours
        with self._lock:
            if self._bucket is None:
                settings = ConnectionSettings(self._limits.connect, self._limits.answer, _CONNECTIONS)
                try:
                    self._bucket = Bucket(self.url, settings=settings, policy=self._policy)
                except ConfigurationError as error:
                    raise Unreachable(str(error)) from error
            return self._bucket

    def close(self) -> None:
        """Close connections and end threads; may be used again afterwards."""
        if self._pid != os.getpid():
            return
        with self._lock:
            bucket, self._bucket = self._bucket, None
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        if bucket is not None:
            bucket.close()

    # Reading

    def read(self, name: str, limit: int) -> s3_probes.Object | None:
        """Return an object of at most ``limit`` bytes, or None if it is absent or larger."""
        bucket = self._mine()
        with self._translated(bucket, reading=True):
            return bucket.requests.run(lambda _: s3_probes.read(bucket, name, limit))

    @contextmanager
    def open(self, name: str) -> Iterator[ObjectReader | None]:
        """Open an object for reading, or None; what goes wrong while it is read is a `TransportError` too."""
        bucket = self._mine()
        with self._translated(bucket, reading=True):
            reader = bucket.open(name)
            try:
                yield reader
            finally:
                if reader is not None:
                    reader.close()

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects directly in ``folder``."""
        bucket = self._mine()
        with self._translated(bucket):
            found = [item.name.removeprefix(f"{folder}/") for item in bucket.objects(f"{folder}/")]
        return [name for name in found if name and "/" not in name]

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes, or None. A listing tells absent from forbidden, in one request."""
        bucket = self._mine()
        folder = name.rpartition("/")[0]  # S3 Express lists only what ends in a slash
        with self._translated(bucket):
            return next((item.size for item in bucket.objects(f"{folder}/") if item.name == name), None)

    def now(self) -> float:
        """Return the store's time by the ``Date`` of an answer: whole seconds, as last changes are."""
        bucket = self._mine()
        with self._translated(bucket):
            answer = bucket.requests.list("list_objects_v2", "", MaxKeys=1)
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            raise Unreachable(
                f"{bucket.where} answers without a Date, so that no lease can be told from a dead one"
            ) from None

    # Writing

    def check_create_only(self) -> None:
        """Return if we may write and names are kept to their first writer; asked of the store once.

        Raises `Denied`, or `Refused` called ``no_create_only``.
        """
        bucket = self._mine()
        if self._creates_only is None:
            try:
                with self._translated(bucket):
                    self._creates_only = s3_probes.create_only(bucket)
            except Denied as error:
                if isinstance(error.__cause__, S3Error) and error.__cause__.reason is Reason.DENIED:
                    self._creates_only = error
                raise
        if self._creates_only is not True:
            raise self._creates_only.with_traceback(None)  # else each raise would add to it

    def create(self, name: str, data: bytes) -> bool:
        """Create an object in one request; False if its name is taken by other bytes."""
        bucket = self._mine()
        with self._translated(bucket):
            return bucket.create(name, data)

    def upload(self, name: str, data: bytes, *, until: float) -> bool:
        """Create an object whose name is the digest of its bytes, a large one in parts; False if its name is taken.

        Begins no part after ``until``, by the transport's clock.
        """
        bucket = self._mine()
        with self._lock:
            pool = self._pool = self._pool or PartPool(_PART_THREADS)
        with self._translated(bucket):
            try:
                return self._upload(bucket, pool, name, data, until)
            except S3Error as error:
                if error.reason is not Reason.REFUSED or not error.status or not self.in_parts(data):
                    raise
                # multipart uploads, or conditions on their completion, are not known there; those on objects are
                return bucket.create(name, data)

    def _upload(self, bucket: Bucket, pool: PartPool, name: str, data: bytes, until: float) -> bool:
        size = part_size(len(data), at_least=self._size_of_parts)
        upload = ObjectUpload(bucket, name, pool=pool, size_of_parts=size)
        try:
            for start in range(0, len(data), size):
                self._check_time(bucket, until)
                upload.write(memoryview(data)[start : start + size])
        except BaseException:
            upload.abort()
            raise
        return upload.commit()

    def _check_time(self, bucket: Bucket, until: float) -> None:
        if self._monotonic() > until:
            raise Unreachable(f"{bucket.where} is too slow: an upload was given up after {self._limits.upload:g} s")

    def in_parts(self, data: bytes) -> bool:
        """Return whether `upload` sends ``data`` in parts."""
        return len(data) > self._size_of_parts

    def abort_uploads(self, folder: str) -> None:
        """Drop the parts of all uploads of ours to ``folder`` that have not ended."""
        bucket = self._mine()
        with self._translated(bucket):
            for item in list(bucket.multiparts.unfinished(folder)):
                above, _, file = item.name.rpartition("/")
                if above == folder and is_entry_file(file):  # else somebody else's, in a folder below perhaps
                    bucket.multiparts.abort(item.name, item.upload)

    def replace(self, name: str, data: bytes, etag: str | None) -> None:
        """Write an object, over the state ``etag`` of it only; without one, or where the store cannot do that, anyhow.

        Raises `LeaseLost` if it is in another state by now.
        """
        bucket = self._mine()
        with self._translated(bucket):
            condition: dict[str, Any] = {}
            if etag is not None and self._knows_if_match(bucket):
                condition["IfMatch"] = etag

            def attempt(unsure: bool) -> None:
                try:
                    bucket.requests.once("put_object", name, Body=data, **condition)
                except S3Error as error:
                    if not condition or error.reason not in {Reason.EXISTS, Reason.ABSENT}:
                        raise
                    found = s3_probes.read(bucket, name, len(data)) if unsure else None
                    if found is None or found.data != data:
                        raise LeaseLost(f"{name} was rewritten by another process") from error

            bucket.requests.run(attempt)

    def _knows_if_match(self, bucket: Bucket) -> bool:
        if self._honours_if_match is None:
            self._honours_if_match = s3_probes.if_match(bucket)
        return self._honours_if_match

    def remove(self, name: str) -> None:
        """Remove an object; an absent one is no error."""
        bucket = self._mine()
        with self._translated(bucket):
            bucket.remove(name)

    def move(self, source: str, target: str) -> None:
        """Move an object; one that is gone is no error."""
        bucket = self._mine()
        with self._translated(bucket):
            if bucket.copy(source, target):
                bucket.remove(source)

    @contextmanager
    def _translated(self, bucket: Bucket, *, reading: bool = False) -> Iterator[None]:
        try:
            yield
        except S3Error as error:
            hint = _hint(bucket) if reading and error.reason is Reason.DENIED and error.status else ""
            raise _transport_error(error, hint) from error


def _hint(bucket: Bucket) -> str:
    """Return what to add to a refused read: without the right to list, S3 answers 403 for what is absent too."""
    try:
        bucket.check(patient=False)
    except S3Error:
        return "; without s3:ListBucket an absent object is answered like that too, so grant both"
    return ""


def _transport_error(error: S3Error, hint: str) -> TransportError:
    sentence = f"{error}{hint}"
    match error.reason:
        case Reason.DENIED | Reason.EXPIRED | Reason.CLOCK:
            return Denied(sentence)
        case Reason.FULL:
            return Refused(sentence, status=507, name="store_full")
        case Reason.REFUSED | Reason.EXISTS:
            return Refused(sentence, status=error.status)
        case _:
            return Unreachable(sentence)
