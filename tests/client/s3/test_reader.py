"""Bytes on their way out of a bucket, over connections that break."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from client.s3.errors import Reason, S3Error
from client.s3.reader import CHUNK

if TYPE_CHECKING:
    from client.s3.bucket import Bucket
    from tests.support.s3_faults import FaultProxy

DATA = os.urandom(3 * CHUNK + 17)


def _read(bucket: Bucket, start: int = 0, stop: int | None = None) -> bytes:
    reader = bucket.open("object")
    assert reader is not None
    try:
        return b"".join(reader.chunks(start, stop))
    finally:
        reader.close()


@pytest.mark.parametrize("cut", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 5, len(DATA) - 1])
def test_a_broken_connection_costs_no_byte(bucket: Bucket, proxy: FaultProxy, cut: int) -> None:
    bucket.create("object", DATA)
    proxy.break_next("GET", cut_after=cut)
    assert _read(bucket) == DATA
    # only what was missing is asked for, and only of the same object
    resumed = proxy.seen[-1].headers
    assert resumed["range"] == f"bytes={cut}-{len(DATA) - 1}"
    assert "if-match" in resumed


def test_a_connection_that_breaks_again_and_again_is_an_error_not_a_short_output(
    bucket: Bucket, proxy: FaultProxy
) -> None:
    bucket.create("object", DATA)
    proxy.break_next("GET", times=2, cut_after=100)
    assert _read(bucket) == DATA
    proxy.break_next("GET", times=3, cut_after=100)
    with pytest.raises(S3Error) as caught:
        _read(bucket)
    assert caught.value.reason is Reason.UNREACHABLE


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_bytes_of_two_objects_are_never_mixed(bucket: Bucket, proxy: FaultProxy, change: str) -> None:
    bucket.create("object", DATA)
    proxy.break_next("GET", cut_after=CHUNK)
    reader = bucket.open("object")
    assert reader is not None
    pieces = reader.chunks()
    assert next(pieces) == DATA[:CHUNK]
    bucket.remove("object")
    if change == "replaced":
        bucket.create("object", bytes(len(DATA)))
    with pytest.raises(S3Error) as caught:
        list(pieces)
    assert caught.value.reason is (Reason.EXISTS if change == "replaced" else Reason.ABSENT)
    reader.close()


def test_a_store_that_sends_the_whole_for_a_part_is_refused(bucket: Bucket, proxy: FaultProxy) -> None:
    bucket.create("object", DATA)
    # its absence is how a store says that it sends all
    proxy.hidden_headers.add("content-range")
    assert _read(bucket) == DATA
    with pytest.raises(S3Error, match="does not send the part"):
        _read(bucket, 5, 9)


def test_a_part_costs_one_more_request_and_the_whole_none(bucket: Bucket, proxy: FaultProxy) -> None:
    bucket.create("object", DATA)
    assert _read(bucket) == DATA
    assert proxy.count("GET") == 1
    assert _read(bucket, CHUNK - 1, CHUNK + 1) == DATA[CHUNK - 1 : CHUNK + 1]
    assert proxy.count("GET") == 3


def test_one_reader_reads_in_any_order(bucket: Bucket) -> None:
    bucket.create("object", DATA)
    reader = bucket.open("object")
    assert reader is not None
    half = reader.chunks()
    next(half)
    assert b"".join(reader.chunks(10, 20)) == DATA[10:20]
    assert b"".join(half) == DATA[CHUNK:]
    assert b"".join(reader.chunks(len(DATA) - 3)) == DATA[-3:]
    reader.close()
    reader.close()
