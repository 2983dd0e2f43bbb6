"""What a bucket must be able to do is found out before anything is kept in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.s3.errors import Reason, S3Error
from client.s3.probe import probe
from tests.support.s3 import all_objects, juicefs

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.s3.bucket import Bucket
    from tests.support.s3 import S3Server
    from tests.support.s3_faults import FaultProxy


def test_a_store_that_keeps_its_promises_is_taken(bucket: Bucket, server: S3Server, proxy: FaultProxy) -> None:
    probe(bucket)
    assert all_objects(server.url(bucket.url.prefix)) == []
    # this store verifies checksums, so they are sent from now on
    bucket.create("x", b"x")
    assert "x-amz-checksum-sha256" in proxy.seen[-1].headers


def test_a_store_that_lets_later_writers_win_is_refused(open_bucket: Callable[..., Bucket]) -> None:
    url = juicefs().new_url()
    with pytest.raises(S3Error, match="ignored If-None-Match and replaced an object: of two writers") as caught:
        probe(open_bucket(url))
    assert caught.value.reason is Reason.REFUSED
    assert len(str(caught.value).splitlines()) == 1
    assert all_objects(url) == []


def test_a_store_that_ignores_the_condition_only_for_large_objects_is_refused(
    bucket: Bucket, proxy: FaultProxy, server: S3Server
) -> None:
    proxy.ignore_if_none_match_of.add("POST")
    with pytest.raises(S3Error, match="ignored If-None-Match when a multipart upload was completed"):
        probe(bucket)
    assert all_objects(server.url(bucket.url.prefix)) == []


def test_a_store_that_does_not_know_the_condition_is_refused(
    bucket: Bucket, proxy: FaultProxy, server: S3Server
) -> None:
    proxy.break_next("PUT", times=99, status=501, code="NotImplemented", header="if-none-match")
    with pytest.raises(S3Error, match="refuses If-None-Match .501 NotImplemented.: of two writers"):
        probe(bucket)
    assert all_objects(server.url(bucket.url.prefix)) == []


@pytest.mark.parametrize(("status", "code"), [(400, "InvalidArgument"), (501, "NotImplemented")])
def test_a_store_that_refuses_checksums_works_without_them(
    bucket: Bucket, proxy: FaultProxy, server: S3Server, status: int, code: str
) -> None:
    for header in ("x-amz-checksum-sha256", "x-amz-checksum-algorithm"):
        for method in ("PUT", "POST"):
            proxy.break_next(method, times=99, status=status, code=code, header=header)
    probe(bucket)
    assert bucket.create("x", b"x")
    upload = bucket.multiparts.begin("y")
    part = bucket.multiparts.put_part("y", upload, 1, b"y")
    assert bucket.multiparts.complete("y", upload, [part], 1)
    assert all_objects(server.url(bucket.url.prefix)) == ["x", "y"]


@pytest.mark.parametrize(
    ("method", "target", "right"),
    [
        ("GET", "list-type=2", "s3:ListBucket on .* a miss looks like a missing right"),
        ("PUT", "tmp-", "s3:PutObject"),
        ("GET", "tmp-", "s3:GetObject"),
        ("POST", "uploads", "s3:PutObject"),
        ("DELETE", "uploadId=", "s3:AbortMultipartUpload"),
        ("DELETE", "tmp-[0-9a-f]*$", "s3:DeleteObject"),
    ],
)
def test_each_right_that_is_missing_is_named(
    bucket: Bucket, proxy: FaultProxy, method: str, target: str, right: str
) -> None:
    proxy.break_next(method, target, times=99, status=403, code="AccessDenied")
    with pytest.raises(S3Error, match=right) as caught:
        probe(bucket)
    assert caught.value.reason is Reason.DENIED
    assert len(str(caught.value).splitlines()) == 1


def test_a_store_that_is_throttled_at_the_start_is_waited_for(bucket: Bucket, proxy: FaultProxy) -> None:
    for method in ("GET", "PUT", "POST", "DELETE"):
        proxy.break_next(method, times=2, status=503, code="SlowDown")
    probe(bucket)
