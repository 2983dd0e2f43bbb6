"""Conditions, ranges and content codings by RFC 9110, as bytes on a socket: a client library would read some of it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NamedTuple

import pytest
import zstandard

from client.wire import ENTRY_HEADER
from tests.cache_server.harness import build, sha256
from tests.fakes.waiting import HANG_SECONDS
from tests.support.http_calls import Caller
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cache_server.harness import Built
    from tests.support.servers import Server

DATA = os.urandom(50) * 20
FRAME = zstandard.ZstdCompressor().compress(DATA)
SIZE = len(DATA)
PLAIN = f'"{sha256(DATA)}"'
PACKED = f'"{sha256(DATA)}-zstd"'
ZSTD = ("Accept-Encoding", "zstd")


class Raw(NamedTuple):
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes


class Peer(NamedTuple):
    """A server with one output stored plain, the same compressed, and an empty one."""

    server: Server
    plain: Built
    packed: Built
    empty: Built

    def say(self, method: str, path: str, *headers: tuple[str, str], body: bytes | None = None) -> Raw:
        """Send a request, on a connection of its own, and read all that comes."""
        host, port = self.server.url.removeprefix("http://").split(":")
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {self.server.token}"]
        lines += ["Connection: close", *(f"{name}: {value}" for name, value in headers)]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        with socket.create_connection((host, int(port)), timeout=HANG_SECONDS) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, rest = received.partition(b"\r\n\r\n")
        first, *others = head.decode("latin-1").split("\r\n")
        named = (line.partition(":") for line in others)
        return Raw(int(first.split()[1]), {name.lower(): value.strip() for name, _, value in named}, rest)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    built = build("plain", DATA), build("packed", DATA, packed=FRAME), build("empty", log=b"")
    with running_server(tmp_path_factory.mktemp("conditional")) as server:
        caller = Caller(server.url, server.token)
        assert [caller.publish(each).status for each in built] == [201, 201, 201]
        yield Peer(server, *built)


CONDITIONS = [
    # If-None-Match compares weakly: RFC 9110, 13.1.2
    ("none-match, ours", [("If-None-Match", PLAIN)], 304),
    ("none-match, ours, weak", [("If-None-Match", f"W/{PLAIN}")], 304),
    ("none-match, any", [("If-None-Match", "*")], 304),
    ("none-match, in a list", [("If-None-Match", f'"a", W/"b,c" ,{PLAIN}')], 304),
    ("none-match, on two lines", [("If-None-Match", '"a"'), ("If-None-Match", PLAIN)], 304),
    ("none-match, another", [("If-None-Match", '"a"')], 200),
    ("none-match, without quotes", [("If-None-Match", PLAIN.strip('"'))], 200),
    ("none-match, a star in quotes", [("If-None-Match", '"*"')], 200),
    ("none-match, the compressed one", [("If-None-Match", PACKED)], 200),
    ("none-match, empty", [("If-None-Match", "")], 200),
    # If-Match compares strongly: 13.1.1
    ("match, ours", [("If-Match", PLAIN)], 200),
    ("match, any", [("If-Match", "*")], 200),
    ("match, in a list", [("If-Match", f'"a", {PLAIN}')], 200),
    ("match, ours, weak", [("If-Match", f"W/{PLAIN}")], 412),
    ("match, another", [("If-Match", '"a"')], 412),
    ("match, the compressed one", [("If-Match", PACKED)], 412),
    # the order of 13.2.2
    ("match fails before none-match", [("If-Match", '"a"'), ("If-None-Match", PLAIN)], 412),
    ("match holds, none-match too", [("If-Match", PLAIN), ("If-None-Match", PLAIN)], 304),
    ("none-match before a range", [("If-None-Match", PLAIN), ("Range", "bytes=0-1")], 304),
    ("none-match before a range outside", [("If-None-Match", PLAIN), ("Range", "bytes=9999-")], 304),
    ("match fails before a range outside", [("If-Match", '"a"'), ("Range", "bytes=9999-")], 412),
    # no dates here: 13.1.3 and 13.1.4 have nothing to compare with
    ("modified since", [("If-Modified-Since", "Sun, 29 Nov 2099 00:00:00 GMT")], 200),
    ("unmodified since", [("If-Unmodified-Since", "Sun, 29 Nov 1999 00:00:00 GMT")], 200),
]


@pytest.mark.parametrize(("headers", "status"), [row[1:] for row in CONDITIONS], ids=[row[0] for row in CONDITIONS])
def test_a_condition_is_answered_as_every_cache_in_between_expects(
    peer: Peer, headers: list[tuple[str, str]], status: int
) -> None:
    for path in (peer.plain.artifact, peer.plain.blob()):
        answer = peer.say("GET", path, *headers)
        assert answer.status == status
        # HEAD differs by the body alone, unless a range made the difference
        assert peer.say("HEAD", path, *headers).status == status
        if status == 200:
            assert answer.body == DATA
        if status == 304:
            assert answer.body == b""
            assert {"etag", "cache-control", "vary"} <= set(answer.headers)
            assert "content-length" not in answer.headers
            assert (ENTRY_HEADER.lower() in answer.headers) == (path == peer.plain.artifact)


RANGES = [
    ("first bytes", [("Range", "bytes=0-9")], 206, (0, 10)),
    ("one byte", [("Range", "bytes=5-5")], 206, (5, 6)),
    ("the unit in capitals", [("Range", "BYTES=5-5")], 206, (5, 6)),
    ("to the end", [("Range", "bytes=990-")], 206, (990, SIZE)),
    ("behind the end", [("Range", "bytes=990-99999")], 206, (990, SIZE)),
    ("the last bytes", [("Range", "bytes=-3")], 206, (SIZE - 3, SIZE)),
    ("more last bytes than there are", [("Range", "bytes=-99999")], 206, (0, SIZE)),
    ("outside", [("Range", f"bytes={SIZE}-")], 416, None),
    ("no last bytes", [("Range", "bytes=-0")], 416, None),
    ("backwards", [("Range", "bytes=9-5")], 200, None),
    ("two", [("Range", "bytes=0-1,4-5")], 200, None),
    ("two on two lines", [("Range", "bytes=0-1"), ("Range", "bytes=4-5")], 200, None),
    ("another unit", [("Range", "items=0-1")], 200, None),
    ("none", [("Range", "bytes=-")], 200, None),
    ("no number", [("Range", "bytes=a-")], 200, None),
    ("negative", [("Range", "bytes=--5")], 200, None),
    ("many digits", [("Range", "bytes=0-" + "9" * 200)], 200, None),
    ("if-range, ours", [("Range", "bytes=0-9"), ("If-Range", PLAIN)], 206, (0, 10)),
    ("if-range, ours, weak", [("Range", "bytes=0-9"), ("If-Range", f"W/{PLAIN}")], 200, None),
    ("if-range, another", [("Range", "bytes=0-9"), ("If-Range", '"a"')], 200, None),
    ("if-range, another, outside", [("Range", "bytes=9999-"), ("If-Range", '"a"')], 200, None),
    ("if-range, a date", [("Range", "bytes=0-9"), ("If-Range", "Sun, 29 Nov 2099 00:00:00 GMT")], 200, None),
    ("if-range, the compressed one", [("Range", "bytes=0-9"), ("If-Range", PACKED)], 200, None),
    ("if-range without range", [("If-Range", PLAIN)], 200, None),
    ("none-match of another, and a range", [("If-None-Match", '"a"'), ("Range", "bytes=0-9")], 206, (0, 10)),
]


@pytest.mark.parametrize(
    ("headers", "status", "part"), [row[1:] for row in RANGES], ids=[row[0].replace(" ", "_") for row in RANGES]
)
@pytest.mark.share(6)
def test_a_range_is_of_the_plain_bytes_and_of_a_frame_the_whole_is_sent(
    peer: Peer, headers: list[tuple[str, str]], status: int, part: tuple[int, int] | None
) -> None:
    """Parts of a frame would have to be unpacked from its beginning, which costs far more than to ask for them."""
    for path, more in ((peer.plain.artifact, []), (peer.packed.artifact, [ZSTD]), (peer.packed.blob(), [])):
        answer = peer.say("GET", path, *headers, *more)
        if path != peer.plain.artifact:
            assert answer.status == 200
            assert answer.headers["accept-ranges"] == "none"
            assert (answer.body == DATA) is not bool(more)
            continue
        assert answer.status == status
        if part is not None:
            start, stop = part
            assert answer.body == DATA[start:stop]
            assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{SIZE}"
            assert (answer.headers["etag"], answer.headers["accept-ranges"]) == (PLAIN, "bytes")
            assert "content-encoding" not in answer.headers
        elif status == 416:
            assert answer.headers["content-range"] == f"bytes */{SIZE}"
            assert answer.headers["content-type"] == "application/problem+json"
        elif "range" in {name.lower() for name, _ in headers}:
            assert answer.body == DATA
        # ranges are for GET alone: RFC 9110, 14.2
        head = peer.say("HEAD", path, *headers, *more)
        assert (head.status, head.body) == (200, b"")
        assert "content-range" not in head.headers


def test_an_empty_output_has_no_part_that_could_be_sent(peer: Peer) -> None:
    path = peer.empty.blob("compile.log")
    assert peer.say("GET", path)[0::2] == (200, b"")
    assert peer.say("GET", path, ("Range", "bytes=0-")).status == 416
    assert peer.say("GET", path, ("Range", "bytes=-5"))[0::2] == (200, b"")


CODINGS = [
    ("zstd", True),
    ("ZSTD", True),
    ("gzip, zstd", True),
    ("gzip;q=1.0, zstd;q=0.001", True),
    ("zstd ;\tq=0.5", True),
    ("*", True),
    ("*;q=0.5", True),
    ("gzip, *", True),
    ("identity;q=0, *", True),
    ("identity;q=0, zstd", True),
    ("identity;q=0.5, zstd", True),
    ("identity;q=0.5, zstd;q=0.5", True),
    ("", False),
    ("gzip", False),
    ("identity", False),
    ("zstd;q=0", False),
    ("zstd; q=0.000", False),
    ("*, zstd;q=0", False),
    ("*;q=0", False),
    ("identity, zstd;q=0.5", False),
    ("*;q=0.5, identity", False),
    ("zstandard", False),
    # nothing is acceptable: what is understood by everybody is sent all the same (12.5.3)
    ("identity;q=0", False),
    ("identity;q=0, gzip", False),
]


@pytest.mark.parametrize(("accepted", "compressed"), CODINGS, ids=[row[0] or "nothing" for row in CODINGS])
def test_a_frame_goes_out_to_those_who_take_one_and_has_a_tag_of_its_own(
    peer: Peer, accepted: str, *, compressed: bool
) -> None:
    wanted = ("Accept-Encoding", accepted)
    answer, head = (peer.say(method, peer.packed.artifact, wanted) for method in ("GET", "HEAD"))
    assert answer.status == head.status == 200
    assert answer.body == (FRAME if compressed else DATA)
    assert answer.headers.get("content-encoding") == ("zstd" if compressed else None)
    assert answer.headers["etag"] == (PACKED if compressed else PLAIN)
    assert answer.headers["vary"] == "accept-encoding"
    assert int(answer.headers["content-length"]) == len(answer.body)
    changing = ("date", "x-request-id")
    assert {name: value for name, value in answer.headers.items() if name not in changing} == {
        name: value for name, value in head.headers.items() if name not in changing
    }
    # a tag is of one representation: the other one is asked for again
    mine, other = (PACKED, PLAIN) if compressed else (PLAIN, PACKED)
    assert peer.say("GET", peer.packed.artifact, wanted, ("If-None-Match", mine)).status == 304
    assert peer.say("GET", peer.packed.artifact, wanted, ("If-None-Match", other)).status == 200
    assert peer.say("GET", peer.packed.artifact, wanted, ("If-Match", other)).status == 412


UPLOADS = [
    ("nobody has it, none-match any", False, [("If-None-Match", "*")], 201),
    ("nobody has it, match any", False, [("If-Match", "*")], 412),
    ("nobody has it, match this", False, [("If-Match", "{tag}")], 412),
    ("stored, none-match any", True, [("If-None-Match", "*")], 412),
    ("stored, none-match this", True, [("If-None-Match", 'W/{tag}, "a"')], 412),
    ("stored, none-match another", True, [("If-None-Match", '"a"')], 200),
    ("stored, match any", True, [("If-Match", "*")], 200),
    ("stored, match this", True, [("If-Match", "{tag}")], 200),
    ("stored, match another", True, [("If-Match", '"a"')], 412),
]


@pytest.mark.parametrize(
    ("stored", "headers", "status"), [row[1:] for row in UPLOADS], ids=[row[0].replace(" ", "_") for row in UPLOADS]
)
def test_an_upload_can_be_made_only_where_nothing_is_stored(
    peer: Peer, headers: list[tuple[str, str]], status: int, *, stored: bool
) -> None:
    data = os.urandom(100)
    path = f"{peer.plain.path}/blobs/{sha256(data)}"
    if stored:
        assert peer.say("PUT", path, body=data).status == 201
    given = [(name, value.format(tag=f'"{sha256(data)}"')) for name, value in headers]
    assert peer.say("PUT", path, *given, body=data).status == status


METHODS = [
    ("{artifact}", "GET, HEAD"),
    ("{blob}", "GET, HEAD, PUT"),
    ("{entry}", "DELETE, GET, HEAD, PUT"),
    ("{lease}", "PATCH, POST"),
    ("{lease}/release", "POST"),
    ("/v1/default/lookup", "POST"),
    ("/v1/default/plans/p", "GET, HEAD, PUT"),
    ("/v1/default/pins/labels/a/b", "DELETE, PUT"),
    ("/v1/default/entries", "GET, HEAD"),
    ("/admin/v1/tokens", "GET, HEAD, POST"),
    ("/healthz", "GET, HEAD"),
    ("/docs", "GET, HEAD"),
]


@pytest.mark.parametrize(("path", "allowed"), METHODS)
def test_a_method_that_is_not_taken_is_told_which_ones_are(peer: Peer, path: str, allowed: str) -> None:
    place = peer.plain
    path = path.format(artifact=place.artifact, blob=place.blob(), entry=place.path, lease=place.lease)
    for method in {"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} - {
        *allowed.split(", ")
    }:
        answer = peer.say(method, path)
        assert (answer.status, answer.headers.get("allow")) == (405, allowed), method
    if "GET" in allowed:
        get, head = peer.say("GET", path), peer.say("HEAD", path)
        assert (head.status, head.body) == (get.status, b"")
        assert head.headers["content-type"] == get.headers["content-type"]


def test_an_address_with_a_slash_too_many_is_no_other_address(peer: Peer) -> None:
    for path in ("/v1/default/quota/", f"{peer.plain.path}/", f"{peer.plain.artifact}/", "/healthz/"):
        answer = peer.say("GET", path)
        assert answer.status in {401, 404}, path
        assert "location" not in answer.headers


BODIES = [
    ("no media type", [], b'{"keys": []}', 415),
    ("text", [("Content-Type", "text/plain")], b'{"keys": []}', 415),
    ("a form", [("Content-Type", "application/x-www-form-urlencoded")], b"keys=", 415),
    ("JSON", [("Content-Type", "application/json")], b'{"keys": []}', 200),
    ("JSON, with a charset", [("Content-Type", "Application/JSON; charset=utf-8")], b'{"keys": []}', 200),
    ("JSON of a dialect", [("Content-Type", "application/problem+json")], b'{"keys": []}', 200),
    ("broken JSON", [("Content-Type", "application/json")], b'{"keys": [', 422),
    ("nothing", [("Content-Type", "application/json")], b"", 422),
    ("nothing, of no type", [], b"", 422),
]


@pytest.mark.parametrize(("headers", "body", "status"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_a_json_body_is_taken_by_its_media_type_alone(
    peer: Peer, headers: list[tuple[str, str]], body: bytes, status: int
) -> None:
    answer = peer.say("POST", "/v1/default/lookup", *headers, body=body)
    assert answer.status == status, answer.body
    if status == 415:
        # operators' bodies are looked at more closely, and not before their type
        assert peer.say("POST", "/admin/v1/collect", *headers, body=body).status == 415
    assert answer.headers.get("accept") == ("application/json" if status == 415 else None)
