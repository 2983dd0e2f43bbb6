"""Objects on their way into a bucket: in bounded memory, and nothing left of those that do not arrive."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.encoding import MAX_SIZE
from client.s3.errors import Reason, S3Error
from client.s3.upload import MAX_PARTS, PART_SIZE, ObjectUpload, PartPool, part_size
from tests.fakes.waiting import HANG_SECONDS
from tests.support.s3 import all_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client.s3.bucket import Bucket
    from tests.support.s3 import S3Server
    from tests.support.s3_faults import FaultProxy

ROOT = Path(__file__).parents[3]
PART = 5 << 20
"""The smallest that S3 allows."""


@pytest.fixture
def begin(bucket: Bucket) -> Iterator[Callable[..., ObjectUpload]]:
    with ExitStack() as stack:
        pool = PartPool(2)
        stack.callback(pool.close)
        yield lambda name="object": ObjectUpload(bucket, name, pool=pool, size_of_parts=PART)


@given(st.integers(0, 40 << 40))
def test_parts_always_suffice(largest: int) -> None:
    size = part_size(largest)
    assert size * MAX_PARTS >= largest
    assert size >= PART_SIZE
    assert size % (1 << 20) == 0


def test_parts_of_the_largest_output_fit_in_memory() -> None:
    assert part_size(MAX_SIZE) == PART_SIZE


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 3 * PART + 7])
def test_any_size_comes_back_whole(
    begin: Callable[..., ObjectUpload], bucket: Bucket, proxy: FaultProxy, size: int
) -> None:
    data = os.urandom(size)
    upload = begin()
    for start in range(0, size, 1 << 20):
        upload.write(data[start : start + (1 << 20)])
    assert upload.commit() is True
    assert bucket.read("object") == data
    assert proxy.count("POST") == (0 if size <= PART else 2)
    upload.abort()
    assert bucket.size("object") == size


@pytest.mark.parametrize("size", [10, 2 * PART])
def test_the_first_writer_keeps_the_name(
    begin: Callable[..., ObjectUpload], bucket: Bucket, server: S3Server, size: int
) -> None:
    bucket.create("object", b"first")
    upload = begin()
    upload.write(bytes(size))
    assert upload.commit() is False
    assert bucket.read("object") == b"first"
    assert all_objects(server.url(bucket.url.prefix)) == ["object"]


@pytest.mark.parametrize("size", [10, PART + 1, 3 * PART])
def test_an_upload_given_up_leaves_nothing(
    begin: Callable[..., ObjectUpload], bucket: Bucket, server: S3Server, size: int
) -> None:
    upload = begin()
    upload.write(bytes(size))
    upload.abort()
    upload.abort()
    assert all_objects(server.url(bucket.url.prefix)) == []


@pytest.mark.parametrize(
    ("method", "target"), [("POST", "uploads"), ("PUT", "partNumber=1"), ("PUT", "partNumber=3"), ("POST", "uploadId=")]
)
def test_an_upload_that_is_refused_leaves_nothing(
    begin: Callable[..., ObjectUpload], bucket: Bucket, proxy: FaultProxy, server: S3Server, method: str, target: str
) -> None:
    proxy.break_next(method, target, status=403, code="AccessDenied")
    upload = begin()
    with pytest.raises(S3Error, match="s3:PutObject") as caught:  # noqa: PT012 - whichever call hears of it
        for _ in range(3):
            upload.write(bytes(PART))
        upload.commit()
    assert caught.value.reason is Reason.DENIED
    upload.abort()
    assert all_objects(server.url(bucket.url.prefix)) == []


def test_parts_that_are_throttled_or_lost_are_sent_again(
    begin: Callable[..., ObjectUpload], bucket: Bucket, proxy: FaultProxy
) -> None:
    proxy.break_next("PUT", "partNumber=1", status=503, code="SlowDown")
    proxy.break_next("PUT", "partNumber=2", applied=True)
    data = os.urandom(2 * PART + 1)
    upload = begin()
    upload.write(data)
    assert upload.commit() is True
    assert bucket.read("object") == data


def test_a_store_that_kept_less_than_it_was_given_is_found_out(
    begin: Callable[..., ObjectUpload], bucket: Bucket, proxy: FaultProxy, server: S3Server
) -> None:
    proxy.truncate_bodies = 5
    upload = begin()
    upload.write(b"0123456789")
    with pytest.raises(S3Error, match="was given 10 bytes and holds 5"):
        upload.commit()
    assert all_objects(server.url(bucket.url.prefix)) == []


def test_writers_of_one_large_output_do_not_harm_each_other(bucket: Bucket, server: S3Server) -> None:
    """SeaweedFS may let several of them win, which is why nothing but outputs, named by digest, is written so."""
    pool = PartPool(4)
    data = os.urandom(PART + 1)
    created: list[bool] = []
    barrier = threading.Barrier(4)

    def write() -> None:
        upload = ObjectUpload(bucket, "object", pool=pool, size_of_parts=PART)
        upload.write(data)
        barrier.wait(HANG_SECONDS)
        created.append(upload.commit())

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    pool.close()
    assert len(created) == 4
    assert any(created)
    assert bucket.read("object") == data
    assert all_objects(server.url(bucket.url.prefix)) == ["object"]


_ROUND_TRIP = """
import hashlib, resource, sys
from client.s3.bucket import Bucket
from client.s3.upload import PART_SIZE, ObjectUpload, PartPool
from client.s3.url import BucketUrl

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

bucket, pool = Bucket(BucketUrl.parse(sys.argv[1])), PartPool(2)
bucket.create("small", b"x")
before, sent, received = peak(), hashlib.sha256(), hashlib.sha256()
upload = ObjectUpload(bucket, "large", pool=pool, size_of_parts=PART_SIZE)
for number in range(120):
    piece = number.to_bytes(4, "big") * (1 << 18)
    sent.update(piece)
    upload.write(piece)
assert upload.commit()
assert bucket.size("large") == 120 << 20
reader = bucket.open("large")
for piece in reader.chunks():
    received.update(piece)
reader.close()
pool.close()
bucket.close()
assert sent.digest() == received.digest()
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_object(server: S3Server) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _ROUND_TRIP, server.new_url()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 64 << 20
