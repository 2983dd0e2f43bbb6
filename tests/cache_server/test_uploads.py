from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
import zstandard

from tests.cache_server.harness import build, problem, sha256

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import InProcess

DATA = os.urandom(3_000_000)
OFFSETS = [0, 1, 2, 1000, 65535, 65536, 65537, 500_000, 1 << 20, (1 << 20) + 1, 2_000_000, 2_999_999]


def _body(data: bytes, *, cut: bool = False) -> list[dict[str, Any]]:
    """The messages of a body in pieces of 64 KiB, which breaks off after ``data`` if ``cut``."""
    pieces = [data[begin : begin + 65536] for begin in range(0, len(data), 65536)] or [b""]
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.disconnect"} if cut else {"type": "http.request", "body": b"", "more_body": False})
    return messages


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_that_breaks_off_anywhere_leaves_nothing_behind(server: InProcess, *, chunked: bool) -> None:
    built = build(neff=DATA)
    headers = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(DATA))}
    for offset in OFFSETS:
        status, body = server.raw("PUT", built.blob(), _body(DATA[:offset], cut=True), headers)
        assert (status, b"short_body" in body) == (400, True)
        assert server.files() == []


def test_a_body_shorter_than_announced_is_refused(server: InProcess) -> None:
    built = build(neff=DATA)
    for offset in OFFSETS:
        status, body = server.raw("PUT", built.blob(), _body(DATA[:offset]), {"content-length": str(len(DATA))})
        assert (status, b"short_body" in body) == (400, True)
        assert server.files() == []


@pytest.mark.parametrize("sent", [b"", b"other", DATA[:-1], DATA + b"x", DATA[:-1] + bytes([DATA[-1] ^ 1])])
def test_bytes_of_another_digest_are_refused(server: InProcess, sent: bytes) -> None:
    built = build(neff=DATA)
    answer = server.call("PUT", built.blob(), content=sent)
    assert problem(answer) == (422, "wrong_digest")
    assert server.files() == []


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused(make_server: Callable[..., InProcess], *, chunked: bool) -> None:
    server = make_server(max_output_bytes=len(DATA) - 1)
    built = build(neff=DATA)
    headers = {} if chunked else {"content-length": str(len(DATA))}
    status, body = server.raw("PUT", built.blob(), _body(DATA), headers)
    assert (status, b"too_large" in body) == (413, True)
    assert server.files() == []


def test_an_upload_that_stands_still_is_given_up(make_server: Callable[..., InProcess]) -> None:
    server = make_server(upload_idle_seconds=0.05)
    built = build(neff=DATA)
    status, body = server.raw("PUT", built.blob(), _body(DATA[:100_000])[:-1], {"content-length": str(len(DATA))})
    assert (status, b"upload_timeout" in body) == (408, True)
    assert server.files() == []


def test_an_upload_says_how_the_output_is_stored(server: InProcess) -> None:
    packed = zstandard.ZstdCompressor().compress(b"x" * 5000)
    built = build(neff=b"x" * 5000, packed=packed)
    first = server.call("PUT", built.blob(), content=packed, headers={"Content-Encoding": "zstd"})
    assert first.status_code == 201
    assert first.json() == {
        "sha256": sha256(b"x" * 5000), "size": 5000, "encoding": "zstd", "stored_size": len(packed)
    }  # fmt: skip
    again = server.call("PUT", built.blob(), content=packed, headers={"Content-Encoding": "zstd"})
    assert (again.status_code, again.json()) == (200, first.json())


def test_another_frame_of_the_same_bytes_takes_the_place_of_an_abandoned_one(server: InProcess) -> None:
    plain = os.urandom(100) * 1000
    small = zstandard.ZstdCompressor(level=19).compress(plain)
    large = _two_blocks(plain)
    assert len(small) != len(large)
    server.upload(build(neff=plain, packed=large))
    built = build(neff=plain, packed=small)
    assert server.publish(built).status_code == 201
    assert server.call("GET", built.artifact).content == plain


def test_another_frame_never_takes_the_place_of_a_published_one(server: InProcess) -> None:
    plain = os.urandom(100) * 1000
    built = build(neff=plain, packed=zstandard.ZstdCompressor(level=19).compress(plain))
    server.publish(built)
    answer = server.call("PUT", built.blob(), content=_two_blocks(plain), headers={"Content-Encoding": "zstd"})
    assert answer.status_code == 200
    assert answer.json()["stored_size"] == len(built.stored["model.neff"])
    assert server.output_path(built).read_bytes() == built.stored["model.neff"]


def _two_blocks(plain: bytes) -> bytes:
    frame = zstandard.ZstdCompressor(level=1).compressobj()
    half = len(plain) // 2
    flushed = frame.compress(plain[:half]) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return bytes(flushed + frame.compress(plain[half:]) + frame.flush())


def _bomb() -> bytes:
    packed = io.BytesIO()
    with zstandard.ZstdCompressor(level=3).stream_writer(packed, closefd=False) as writer:
        for _ in range(64):
            writer.write(bytes(1 << 20))
    return packed.getvalue()


def test_a_zstd_bomb_is_stopped_at_the_limit(make_server: Callable[..., InProcess]) -> None:
    server = make_server(max_output_bytes=1 << 20)
    bomb = _bomb()
    assert len(bomb) < 10_000
    answer = server.call("PUT", build().blob(), content=bomb, headers={"Content-Encoding": "zstd"})
    assert problem(answer) == (413, "too_large")
    assert server.files() == []


_FRAME = zstandard.ZstdCompressor().compress(b"plain" * 100)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"no frame at all",
        _FRAME[:-1],
        _FRAME + b"x",
        _FRAME + _FRAME,
        _FRAME[:-3] + b"\0\0\0",
        # a window of 2 GiB: more memory than RFC 9659 lets a sender ask for
        b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\x00\x00",
    ],
)
def test_what_is_not_exactly_one_zstd_frame_is_refused(server: InProcess, sent: bytes) -> None:
    built = build(neff=b"plain" * 100)
    answer = server.call("PUT", built.blob(), content=sent, headers={"Content-Encoding": "zstd"})
    assert answer.status_code in {400, 422}
    assert problem(answer)[1] in {"broken_body", "wrong_digest"}
    assert server.files() == []


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd, gzip"])
def test_other_encodings_are_refused(server: InProcess, coding: str) -> None:
    answer = server.call("PUT", build().blob(), content=b"x", headers={"Content-Encoding": coding})
    assert problem(answer) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../graph/entries/{key}/blobs/{digest}",
        "/v1/default/graph/entries/{key}/blobs/..%2F..%2Fx",
        "/v1/default/graph/entries/{key}/blobs/%2e%2e",
        "/v1/Default/graph/entries/{key}/blobs/{digest}",
        "/v1/meta/graph/entries/{key}/blobs/{digest}",
        "/v1/quarantine/graph/entries/{key}/blobs/{digest}",
        "/v1/-x/graph/entries/{key}/blobs/{digest}",
        "/v1/" + "a" * 64 + "/graph/entries/{key}/blobs/{digest}",
        "/v1/default%00/graph/entries/{key}/blobs/{digest}",
        "/v1/default%0A/graph/entries/{key}/blobs/{digest}",
        "/v1/default/other/entries/{key}/blobs/{digest}",
        "/v1/default/graph/entries/{upper}/blobs/{digest}",
        "/v1/default/graph/entries/{key}/blobs/{upper}",
        "/v1/default/graph/entries/{key}x/blobs/{digest}",
        "/v1/default/graph/entries/{key}/blobs/{digest}.zst",
        "/v1//graph/entries/{key}/blobs/{digest}",
        "/v1/default/graph/entries/{key}/blobs/",
    ],
)
def test_no_name_leads_out_of_the_store(server: InProcess, path: str) -> None:
    built = build()
    digest = sha256(b"x")
    filled = path.format(key=built.entry.key, digest=digest, upper=digest.upper())
    status, _ = server.raw("PUT", unquote(filled), _body(b"x"))
    assert status in {404, 422}
    assert server.files() == []
