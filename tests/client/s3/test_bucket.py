"""A bucket, against a real server whose answers a proxy spoils."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from client.s3.errors import Reason, S3Error
from tests.fakes.waiting import HANG_SECONDS
from tests.support.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, all_objects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from client.s3.bucket import Bucket
    from tests.support.s3 import S3Server
    from tests.support.s3_faults import FaultProxy, PassedTime

PASSING = [(429, "TooManyRequests"), (503, "SlowDown"), (503, ""), (500, "InternalError"), (502, ""), (504, "")]


def _put_multipart(bucket: Bucket, name: str, data: bytes) -> bool:
    upload = bucket.multiparts.begin(name)
    part = bucket.multiparts.put_part(name, upload, 1, data)
    return bucket.multiparts.complete(name, upload, [part], len(data))


@pytest.mark.parametrize(("status", "code"), PASSING)
@pytest.mark.parametrize("call", ["create", "read", "size", "objects", "remove"])
def test_a_throttled_store_is_asked_again(
    bucket: Bucket, proxy: FaultProxy, time: PassedTime, call: str, status: int, code: str
) -> None:
    bucket.create("present", b"bytes")
    method = {"create": "PUT", "read": "GET", "size": "HEAD", "objects": "GET", "remove": "DELETE"}[call]
    proxy.break_next(method, times=2, status=status, code=code)
    answer = {
        "create": lambda: bucket.create("new", b"x"),
        "read": lambda: bucket.read("present"),
        "size": lambda: bucket.size("present"),
        "objects": lambda: [item.name for item in bucket.objects("")],
        "remove": lambda: bucket.remove("present"),
    }[call]()
    assert answer == {"create": True, "read": b"bytes", "size": 5, "objects": ["present"], "remove": None}[call]
    assert len(time.slept) == 2


def test_a_store_that_stays_throttled_costs_a_bounded_time(bucket: Bucket, proxy: FaultProxy, time: PassedTime) -> None:
    begin = time.now
    proxy.break_next("GET", times=1000, status=503, code="SlowDown")
    with pytest.raises(S3Error, match="throttled or busy") as caught:
        bucket.read("x")
    assert caught.value.reason is Reason.BUSY
    assert time.now - begin < 20
    assert 5 < proxy.count("GET") < 50


def test_a_question_for_health_is_answered_at_once(bucket: Bucket, proxy: FaultProxy, time: PassedTime) -> None:
    proxy.break_next("GET", status=503, code="SlowDown")
    with pytest.raises(S3Error, match="SlowDown"):
        bucket.check(patient=False)
    assert time.slept == []
    bucket.check(patient=False)


def test_an_error_inside_a_200_is_an_error(bucket: Bucket, proxy: FaultProxy, server: S3Server) -> None:
    """S3 begins its answer to a long request before it knows whether it will succeed."""
    for code in ("SlowDown", "InternalError"):
        proxy.break_next("POST", "uploadId=", status=200, code=code)
        assert _put_multipart(bucket, f"object-{code}", b"bytes")
        assert bucket.read(f"object-{code}") == b"bytes"
    proxy.break_next("PUT", "copy", status=200, code="SlowDown")
    assert bucket.copy("object-SlowDown", "copy")
    assert bucket.read("copy") == b"bytes"
    proxy.break_next("POST", "uploadId=", times=1000, status=200, code="SlowDown")
    with pytest.raises(S3Error, match="SlowDown"):
        _put_multipart(bucket, "never", b"bytes")
    assert bucket.size("never") is None


@pytest.mark.parametrize("status", [0, 500, 503])
def test_a_write_whose_answer_was_lost_is_not_called_someone_elses(
    bucket: Bucket, proxy: FaultProxy, status: int
) -> None:
    proxy.break_next("PUT", "mine", status=status, applied=True)
    assert bucket.create("mine", b"my bytes") is True
    assert proxy.count("PUT", "mine") == 2
    proxy.break_next("POST", "uploadId=", status=status, applied=True)
    assert _put_multipart(bucket, "large", b"my bytes") is True
    assert bucket.read("large") == b"my bytes"


def test_a_write_that_lost_while_its_answer_was_lost_has_lost(bucket: Bucket, proxy: FaultProxy) -> None:
    bucket.create("theirs", b"her bytes")
    proxy.break_next("PUT", "theirs", status=500, applied=True)
    assert bucket.create("theirs", b"my bytes!") is False
    assert bucket.read("theirs") == b"her bytes"
    upload = bucket.multiparts.begin("theirs")
    part = bucket.multiparts.put_part("theirs", upload, 1, b"much longer than hers")
    proxy.break_next("POST", "uploadId=", status=500, applied=True)
    assert bucket.multiparts.complete("theirs", upload, [part], len(b"much longer than hers")) is False
    bucket.multiparts.abort("theirs", upload)
    assert bucket.read("theirs") == b"her bytes"


def test_a_conflict_with_a_running_write_is_no_loss(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.break_next("PUT", "entry", times=2, status=409, code="ConditionalRequestConflict")
    assert bucket.create("entry", b"bytes") is True
    proxy.break_next("POST", "uploadId=", status=409, code="ConditionalRequestConflict")
    assert _put_multipart(bucket, "free", b"bytes") is True
    proxy.break_next("POST", "uploadId=", status=409, code="ConditionalRequestConflict")
    assert _put_multipart(bucket, "free", b"other") is False
    proxy.break_next("POST", "uploadId=", times=1000, status=409, code="ConditionalRequestConflict")
    with pytest.raises(S3Error, match="409"):
        _put_multipart(bucket, "never", b"bytes")


@pytest.mark.parametrize("call", ["read", "size"])
def test_a_missing_right_is_no_miss(bucket: Bucket, proxy: FaultProxy, call: str) -> None:
    proxy.break_next("GET", times=9, status=403, code="AccessDenied")
    proxy.break_next("HEAD", times=9, status=403)
    with pytest.raises(S3Error, match=re.escape("grant s3:GetObject")) as caught:
        getattr(bucket, call)("x")
    assert caught.value.reason is Reason.DENIED
    proxy.faults.clear()
    assert getattr(bucket, call)("x") is None


@pytest.mark.parametrize("call", ["read", "size", "check"])
def test_a_missing_bucket_is_no_miss(open_bucket: Callable[..., Bucket], server: S3Server, call: str) -> None:
    missing = open_bucket(f"s3://not-there/prefix?endpoint={server.endpoint}")
    with pytest.raises(S3Error, match="'not-there' .*does not exist") as caught:
        missing.check(patient=False) if call == "check" else getattr(missing, call)("x")
    assert caught.value.reason is Reason.NO_BUCKET


def test_a_wrong_clock_is_named(bucket: Bucket, proxy: FaultProxy) -> None:
    proxy.break_next("HEAD", status=403)
    proxy.break_next("GET", status=403, code="RequestTimeTooSkewed")
    with pytest.raises(S3Error, match=r"clock .*NTP") as caught:
        bucket.size("x")
    assert caught.value.reason is Reason.CLOCK


def test_a_full_store_is_told_from_a_broken_one(bucket: Bucket, proxy: FaultProxy) -> None:
    for status, code in ((507, ""), (403, "QuotaExceeded")):
        proxy.break_next("PUT", status=status, code=code)
        with pytest.raises(S3Error, match="no room") as caught:
            bucket.create("x", b"x")
        assert caught.value.reason is Reason.FULL


def test_a_dead_endpoint_is_one_sentence_without_the_keys(open_bucket: Callable[..., Bucket], time: PassedTime) -> None:
    with pytest.raises(S3Error, match="EndpointConnectionError") as caught:
        open_bucket("s3://bucket?endpoint=http://127.0.0.1:1").read("x")
    assert caught.value.reason is Reason.UNREACHABLE
    for text in (str(caught.value), repr(caught.value.__cause__)):
        assert SECRET_KEY not in text


@pytest.mark.parametrize("call", ["read", "size", "create"])
def test_credentials_that_ran_out_are_fetched_anew(
    open_bucket: Callable[..., Bucket],
    proxy: FaultProxy,
    server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    call: str,
) -> None:
    """Something outside renews the file; boto3 by itself reads it once."""
    keys = tmp_path / "credentials"
    text = "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
    keys.write_text(text.format("OLDKEY", SECRET_KEY))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    bucket = open_bucket(proxy.url(f"renewed-{call}"))
    for method in ("GET", "PUT"):
        proxy.break_next(
            method, times=99, status=400, code="ExpiredToken", header="authorization", header_value="OLDKEY"
        )
    proxy.break_next("HEAD", times=99, status=400, header="authorization", header_value="OLDKEY")

    arguments = ("x", b"x") if call == "create" else ("x",)
    with pytest.raises(S3Error, match="ExpiredToken") as caught:
        getattr(bucket, call)(*arguments)
    assert caught.value.reason is Reason.EXPIRED
    # asked twice: once before, once after the chain was walked again
    assert proxy.count({"read": "GET", "size": "HEAD", "create": "PUT"}[call], "/x$") == 2

    keys.write_text(text.format(ACCESS_KEY, SECRET_KEY))
    assert getattr(bucket, call)(*arguments) == {"read": None, "size": None, "create": True}[call]


def test_no_credentials_are_one_sentence(
    open_bucket: Callable[..., Bucket], server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(S3Error, match="set AWS_ACCESS_KEY_ID") as caught:
        open_bucket(server.new_url()).read("x")
    assert caught.value.reason is Reason.DENIED


def test_a_wrong_secret_is_said_and_not_shown(
    open_bucket: Callable[..., Bucket], server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(S3Error, match="check secret key") as caught:
        open_bucket(server.new_url()).read("x")
    assert "wrong-secret" not in str(caught.value)


def test_long_listings_are_whole(bucket: Bucket) -> None:
    names = [f"a/{number:02}" for number in range(7)] + ["b/c/d", "b/e/f", "c"]
    for name in names:
        bucket.create(name, b"x")
    assert [item["Key"].split("/", 1)[1] for page in bucket._pages("", MaxKeys=3) for item in page["Contents"]] == names
    assert [item.name for item in bucket.objects("a/0")] == names[:7]
    assert list(bucket.folders("")) == ["a", "b"]
    assert list(bucket.folders("b/")) == ["c", "e"]


def test_many_unfinished_uploads_are_all_found(bucket: Bucket) -> None:
    begun = {(f"large-{number % 2}", bucket.multiparts.begin(f"large-{number % 2}")) for number in range(5)}
    found = list(bucket.multiparts.unfinished(page_size=2))
    assert len(found) == 5
    assert {(item.name, item.upload) for item in found} == begun
    for name, upload in begun:
        bucket.multiparts.abort(name, upload)
        bucket.multiparts.abort(name, upload)
    assert list(bucket.multiparts.unfinished()) == []


def test_large_objects_are_copied_in_parts(open_bucket: Callable[..., Bucket], server: S3Server) -> None:
    bucket = open_bucket(server.new_url(), copy_size=5 << 20)
    data = os.urandom((12 << 20) + 3)
    bucket.create("source", data)
    assert bucket.copy("source", "target")
    assert bucket.read("target") == data
    assert bucket.copy("absent", "target") is False
    assert list(bucket.multiparts.unfinished()) == []


def test_a_copy_that_fails_leaves_nothing(
    open_bucket: Callable[..., Bucket], proxy: FaultProxy, server: S3Server
) -> None:
    bucket = open_bucket(proxy.url("failed-copy"), copy_size=5 << 20)
    bucket.create("source", bytes(6 << 20))
    proxy.break_next("PUT", "partNumber=2", status=403, code="AccessDenied")
    with pytest.raises(S3Error, match="s3:GetObject and s3:PutObject"):
        bucket.copy("source", "target")
    assert all_objects(server.url("failed-copy")) == ["source"]


def test_a_presigned_url_needs_no_keys_and_shows_none(bucket: Bucket) -> None:
    bucket.create("output", b"0123456789")
    url = bucket.presign("output", 60)
    assert SECRET_KEY not in url
    assert "X-Amz-Expires=60" in url
    request = urllib.request.Request(url, headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
        assert answer.read() == b"234"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url.replace("/output?", "/other?"), timeout=HANG_SECONDS)
    with caught.value as refused:
        assert refused.code == 403


def test_names_stay_below_the_prefix(bucket: Bucket, open_bucket: Callable[..., Bucket], server: S3Server) -> None:
    bucket.create("x", b"x")
    neighbour = open_bucket(server.url(f"{bucket.url.prefix}-more"))
    assert neighbour.read("x") is None
    neighbour.create("y", b"y")
    assert [item.name for item in bucket.objects("")] == ["x"]
    whole = open_bucket(f"s3://{BUCKET}?endpoint={server.endpoint}")
    assert whole.read(f"{bucket.url.prefix}/x") == b"x"
