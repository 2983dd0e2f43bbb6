from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import zstandard

from client.names import Kind
from client.wire import ENTRY_HEADER, Entry
from tests.cache_server.harness import build, problem, sha256
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from tests.cache_server.harness import InProcess

PLAIN = os.urandom(1000) * 3000
ZSTD = {"Accept-Encoding": "gzip, zstd"}


def test_a_hit_takes_one_round_trip_and_carries_what_is_needed_to_verify_it(server: InProcess) -> None:
    built = build(neff=PLAIN)
    server.publish(built)
    answer = server.call("GET", built.artifact)
    assert answer.status_code == 200
    assert answer.content == PLAIN
    assert answer.headers["etag"] == f'"{sha256(PLAIN)}"'
    assert int(answer.headers["content-length"]) == len(PLAIN)
    assert Entry.from_header(answer.headers[ENTRY_HEADER]) == built.entry.without_document()


def test_head_says_what_get_would_without_the_bytes(server: InProcess) -> None:
    built = build(neff=PLAIN)
    server.publish(built)
    head, get = server.call("HEAD", built.artifact), server.call("GET", built.artifact)
    assert head.content == b""
    for name in ("etag", "content-length", "content-type", ENTRY_HEADER, "accept-ranges"):
        assert head.headers[name] == get.headers[name]


def test_a_miss_is_a_problem_and_not_just_any_404(server: InProcess) -> None:
    assert problem(server.call("GET", build().artifact)) == (404, "not_found")


def test_a_miss_to_head_has_no_body(server: InProcess) -> None:
    assert server.raw("HEAD", build().artifact, [{"type": "http.request"}]) == (404, b"")


def test_a_zstd_output_goes_out_as_stored_only_to_those_who_take_it(server: InProcess) -> None:
    packed = zstandard.ZstdCompressor().compress(PLAIN)
    built = build(neff=PLAIN, packed=packed)
    server.publish(built)
    assert server.output_path(built).read_bytes() == packed

    # httpx would decode: what counts is what was sent
    status, body = server.raw("GET", built.artifact, [{"type": "http.request"}], {"accept-encoding": "gzip, zstd"})
    assert (status, body) == (200, packed)
    answer = server.call("HEAD", built.artifact, headers=ZSTD)
    assert answer.headers["content-encoding"] == "zstd"
    assert answer.headers["etag"] == f'"{sha256(PLAIN)}-zstd"'

    for accept in ("identity", "gzip", "zstd;q=0", "zstd; q=0.000", "*, zstd;q=0", "*;q=0", ""):
        plain = server.call("GET", built.artifact, headers={"Accept-Encoding": accept})
        assert "content-encoding" not in plain.headers
        assert plain.headers["etag"] == f'"{sha256(PLAIN)}"'
        assert plain.content == PLAIN


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-99", 0, 100),
        ("bytes=1048575-1048577", 1048575, 1048578),
        ("bytes=2999999-", 2999999, 3000000),
        ("bytes=-5", 2999995, 3000000),
        ("bytes=-9999999", 0, 3000000),
        ("bytes=5-99999999999", 5, 3000000),
    ],
)
def test_a_broken_download_can_go_on_where_it_stopped(server: InProcess, wanted: str, start: int, stop: int) -> None:
    built = build(neff=PLAIN)
    server.publish(built)
    answer = server.call("GET", built.artifact, headers={"Range": wanted, **ZSTD})
    assert answer.status_code == 206
    assert answer.content == PLAIN[start:stop]
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(PLAIN)}"
    assert answer.headers["etag"] == f'"{sha256(PLAIN)}"'


@pytest.mark.parametrize("wanted", ["bytes=5-4", "bytes=-", "bytes=a-b", "lines=0-1", "bytes=0-1,5-6", "bytes"])
def test_a_range_that_is_none_is_answered_with_the_whole(server: InProcess, wanted: str) -> None:
    built = build()
    server.publish(built)
    answer = server.call("GET", built.artifact, headers={"Range": wanted})
    assert answer.status_code == 200
    assert answer.content == built.stored["model.neff"]


@pytest.mark.parametrize("wanted", ["bytes=400-", "bytes=400-500", "bytes=-0"])
def test_a_range_outside_says_how_long_the_output_is(server: InProcess, wanted: str) -> None:
    built = build()
    server.publish(built)
    answer = server.call("GET", built.artifact, headers={"Range": wanted})
    assert problem(answer) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == "bytes */400"


def test_a_range_of_another_version_is_answered_with_the_whole(server: InProcess) -> None:
    built = build()
    server.publish(built)
    tag = server.call("HEAD", built.artifact).headers["etag"]
    ours = server.call("GET", built.artifact, headers={"Range": "bytes=0-9", "If-Range": tag})
    other = server.call("GET", built.artifact, headers={"Range": "bytes=0-9", "If-Range": '"other"'})
    assert (ours.status_code, other.status_code) == (206, 200)


def test_who_has_the_bytes_already_does_not_get_them_again(server: InProcess) -> None:
    built = build()
    server.publish(built)
    tag = server.call("HEAD", built.artifact).headers["etag"]
    for value in (tag, f'"x", W/{tag}', "*"):
        answer = server.call("GET", built.artifact, headers={"If-None-Match": value})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == tag
        assert ENTRY_HEADER in answer.headers
    assert server.call("GET", built.artifact, headers={"If-None-Match": '"x"'}).status_code == 200
    # an artifact that is not there matches nothing, not even *
    assert server.call("GET", build("b").artifact, headers={"If-None-Match": "*"}).status_code == 404


def test_a_wish_for_another_version_is_refused(server: InProcess) -> None:
    built = build()
    server.publish(built)
    tag = server.call("HEAD", built.artifact).headers["etag"]
    assert server.call("GET", built.artifact, headers={"If-Match": tag}).status_code == 200
    for value in ('"x"', f"W/{tag}"):
        answer = server.call("GET", built.artifact, headers={"If-Match": value})
        assert problem(answer) == (412, "precondition_failed")


def test_an_entry_too_large_for_a_header_is_left_out_of_it(server: InProcess) -> None:
    built = build(log=None)
    outputs = [{**built.entry.outputs[0].to_json()}]
    for number in range(40):
        data = b"%d" % number
        server.call("PUT", f"{built.path}/blobs/{sha256(data)}", content=data)
        outputs.append({"name": f"file-{number}", "sha256": sha256(data), "size": len(data), "encoding": "identity", "stored_size": len(data)})  # fmt: skip  # noqa: E501
    server.upload(built)
    assert server.call("PUT", built.path, json={**built.entry.to_json(), "outputs": outputs}).status_code == 201
    answer = server.call("GET", built.artifact)
    assert (answer.status_code, answer.content) == (200, built.stored["model.neff"])
    assert ENTRY_HEADER not in answer.headers


def test_other_outputs_are_read_by_their_digest(server: InProcess) -> None:
    built = build(log=b"what the compiler said")
    server.publish(built)
    answer = server.call("GET", built.blob("compile.log"))
    assert (answer.status_code, answer.content) == (200, b"what the compiler said")
    assert server.call("HEAD", built.blob("compile.log")).headers["content-length"] == "22"
    assert problem(server.call("GET", f"{built.path}/blobs/{'0' * 64}")) == (404, "not_found")


def test_an_empty_output_is_an_output(server: InProcess) -> None:
    built = build(log=b"")
    server.publish(built)
    answer = server.call("GET", built.blob("compile.log"))
    assert (answer.status_code, answer.content) == (200, b"")


def test_namespaces_never_mix(server: InProcess) -> None:
    built = build()
    server.publish(built)
    for path in (
        f"/v1/other/graph/artifacts/{built.entry.key}",
        *(f"/v1/default/{kind}/artifacts/{built.entry.key}" for kind in Kind if kind is not Kind.GRAPH),
    ):
        assert problem(server.call("GET", path)) == (404, "not_found")


@pytest.mark.parametrize("damage", ["missing", "short", "long"])
def test_an_output_of_another_size_is_never_served(server: InProcess, damage: str) -> None:
    built = build(neff=PLAIN)
    server.publish(built)
    path = server.output_path(built)
    content = {"missing": None, "short": PLAIN[:-1], "long": PLAIN + b"x"}[damage]
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert problem(server.call("GET", built.artifact)) == (404, "not_found")


def test_a_damaged_frame_breaks_the_answer_instead_of_ending_it_early(server: InProcess) -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(os.urandom(4 << 20)))
    plain = zstandard.ZstdDecompressor().decompress(bytes(packed))
    built = build(neff=plain, packed=bytes(packed))
    server.publish(built)
    damaged = packed[: len(packed) // 2] + bytes(len(packed) - len(packed) // 2)
    server.output_path(built).unlink()
    server.output_path(built).write_bytes(damaged)
    answer = server.send("GET", built.artifact, headers={"Accept-Encoding": "identity"})
    try:
        content = answer.result(HANG_SECONDS).content
    except Exception:  # noqa: BLE001 - a broken connection is one right answer, fewer bytes than promised the other
        return
    assert len(content) < len(plain)
