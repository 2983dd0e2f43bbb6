"""Everything that is wrong with a request, sent to a real server over plain sockets. Run with ``-s`` for the table.

After each request the server answers others, fsck finds nothing, and neither store nor temporary folder grew.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import zstandard
from sqlalchemy import make_url

from cache_server.database.engine import Database
from cache_server.http.protocol import MAX_HEAD, MAX_UNWANTED
from cache_server.services.fsck import Fsck
from cache_server.stores.local import LocalStore
from client.encoding import MAX_WINDOW
from client.names import MAIN_OUTPUT
from tests.cache_server.harness import build, sha256
from tests.fakes.waiting import HANG_SECONDS
from tests.support.http_calls import Caller
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

MIB = 1 << 20
IDLE = 1.0
LIMIT = 8 * MIB
HOLDS = 60 * MIB
"""How much a server's memory may grow over all of this: far less than any bomb unpacks to."""

BROKEN = 0
"""In place of a status: the connection ended without an answer."""


@dataclass
class Target:
    """A server with one published entry, and what it has answered so far."""

    server: Server
    caller: Caller
    rows: list[tuple[str, str]] = field(default_factory=list)

    def head(self, method: str, path: str, *lines: str, token: str | None = None) -> bytes:
        given = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token or self.caller.token}"]
        return ("\r\n".join([*given, *lines]) + "\r\n\r\n").encode("latin-1")

    def send(self, *pieces: bytes, end: bool = False, pause: float = 0.0, seconds: float = 15.0) -> list[int]:
        """Send pieces and return the statuses of all answers; ``end`` closes our half afterwards."""
        received = bytearray()
        with socket.create_connection(self.caller.address, timeout=seconds) as connection:
            with contextlib.suppress(OSError):
                for piece in pieces:
                    connection.sendall(piece)
                    if pause:
                        time.sleep(pause)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                connection.settimeout(seconds if end or pause else 3.0)
                while data := connection.recv(65536):
                    received += data
                    if not (end or pause) and _is_whole(received):
                        break
        return _statuses(bytes(received)) or [BROKEN]

    def files(self) -> list[str]:
        root = self.server.data / "store"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def memory(self) -> int:
        fields = dict(
            line.split(":", 1)
            for line in (self.server.data.parent / "proc-status-link").read_text().splitlines()
            if ":" in line
        )
        return int(fields["VmRSS"].split()[0]) * 1024


def _is_whole(received: bytearray) -> bool:
    head, separator, body = bytes(received).partition(b"\r\n\r\n")
    if not separator:
        return False
    lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and len(body) >= lengths[0]


def _statuses(received: bytes) -> list[int]:
    found = []
    for line in received.split(b"\r\n"):
        # an answer begins a line, or stands right behind the JSON of the one before
        _, separator, rest = line.rpartition(b"HTTP/1.1 ")
        if separator and rest[:3].isdigit() and rest[:3] != b"100":
            found.append(int(rest[:3]))
    return found


PUBLISHED = build("published", os.urandom(100_000))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("hostile")
    environment = {
        "NEFF_CACHE_UPLOAD_IDLE_SECONDS": str(IDLE),
        "NEFF_CACHE_HEAD_SECONDS": str(IDLE),
        "NEFF_CACHE_MAX_OUTPUT_BYTES": str(LIMIT),
    }
    with running_server(folder, environment=environment) as server:
        (folder / "proc-status-link").symlink_to(f"/proc/{server.process.pid}/status")
        target = Target(server, Caller(server.url, server.token))
        assert target.caller.publish(PUBLISHED).status == 201
        yield target
    lines = [f"  {what:62} {got}" for what, got in target.rows]
    print("", *lines, sep="\n")  # noqa: T201 - the table that -s shows


@pytest.fixture(autouse=True)
def _unharmed(target: Target) -> Iterator[None]:
    files, memory = target.files(), target.memory()
    yield
    _is_unharmed(target, files)
    assert target.memory() < memory + HOLDS


def _is_unharmed(target: Target, files: list[str]) -> None:
    end = time.monotonic() + HANG_SECONDS
    while (found := target.files()) != files and time.monotonic() < end:
        time.sleep(0.01)
    assert found == files
    assert target.caller.call("GET", PUBLISHED.artifact).body == PUBLISHED.stored[MAIN_OUTPUT]
    database = Database(make_url(f"sqlite:///{target.server.data}/cache.db"), connections=1)
    try:
        fsck = Fsck(LocalStore(target.server.data / "store"), database, orphan_seconds=86400, deep=True)
        # the server may only now come to a request whose sender is gone already, and hold its upload for a moment
        while (report := fsck.run()).pending and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        database.close()
    assert report.findings == []
    assert report.pending == 0


def _expect(target: Target, what: str, got: list[int], wanted: set[int]) -> None:
    shown = ", ".join("connection closed" if status == BROKEN else str(status) for status in got)
    target.rows.append((what, shown))
    assert set(got) <= wanted, (what, got)


# Uploads that end too early.


@pytest.mark.parametrize("chunked", [False, True], ids=["by length", "chunked"])
def test_an_upload_cut_short_anywhere_is_never_stored(target: Target, *, chunked: bool) -> None:
    """OPEN-007: a client that breaks off has not finished."""
    data = os.urandom(2 * MIB + 12_345)
    built = build(f"cut {chunked}", data, log=None)
    offsets = sorted({0, 1, 2, 100, 65_535, 65_536, MIB - 1, MIB, MIB + 1, 2 * MIB, len(data) - 2, len(data) - 1})
    offsets += [len(data) * part // 9 for part in range(1, 9)]
    assert len(offsets) == 20
    files = target.files()
    for offset in offsets:
        if chunked:
            head = target.head("PUT", built.blob(), "Transfer-Encoding: chunked")
            # the last chunk says that more is to come
            body = b"%x\r\n%b" % (len(data), data[:offset])
        else:
            head = target.head("PUT", built.blob(), f"Content-Length: {len(data)}")
            body = data[:offset]
        got = target.send(head + body, end=True)
        _expect(
            target, f"cut after {offset} of {len(data)} bytes, {'chunked' if chunked else 'by length'}", got, {0, 400}
        )
        _is_unharmed(target, files)
        assert target.caller.call("GET", built.artifact).status == 404
        assert target.caller.call("HEAD", built.blob()).status == 404
    answer = target.caller.call("PUT", built.path, built.entry.to_json())
    assert (answer.status, answer.name) == (409, "blob_missing")
    # operators see how many there were
    counted = target.caller.call("GET", "/metrics").body.decode()
    assert float(counted.partition('neff_cache_errors_total{name="short_body"} ')[2].split()[0]) >= len(offsets)
    if chunked:
        # a sender that ends its chunks properly, but too early
        head = target.head("PUT", built.blob(), "Transfer-Encoding: chunked")
        got = target.send(head, b"%x\r\n%b\r\n0\r\n\r\n" % (MIB, data[:MIB]))
        _expect(target, "chunks that end properly after half of the output", got, {422})


# Bodies that are not what they should be.


def _zeros(size: int, **options: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, **options)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    pieces = [compressor.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join([*pieces, compressor.flush()])


BOMB = _zeros(2048 * MIB)
FRAME = zstandard.ZstdCompressor().compress(b"n" * 1000)
GREAT_WINDOW = _zeros(MIB, window_log=MAX_WINDOW.bit_length() + 1)
CLAIMS_MUCH = b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + FRAME[6:]
SKIPPABLE = b"\x50\x2a\x4d\x18" + (1 << 31).to_bytes(4, "little") + bytes(1000)

BODIES: dict[str, tuple[bytes, str, str, set[int]]] = {
    "wrong digest": (b"other bytes", "identity", sha256(b"these bytes"), {422}),
    "empty body for another digest": (b"", "identity", sha256(b"x"), {422}),
    "larger than the limit": (bytes(LIMIT + 1), "identity", sha256(b"x"), {413}),
    "zstd: 2 GiB of zeros in 190 kB": (BOMB, "zstd", sha256(b"x"), {413}),
    "zstd: window beyond the bound": (GREAT_WINDOW, "zstd", sha256(bytes(MIB)), {400, 413}),
    "zstd: claims 2^60 bytes": (CLAIMS_MUCH, "zstd", sha256(b"x"), {400, 413}),
    "zstd: endless skippable frame": (SKIPPABLE, "zstd", sha256(b""), {400, 422}),
    "zstd: cut": (FRAME[:-4], "zstd", sha256(b"n" * 1000), {400}),
    "zstd: bytes after the frame": (FRAME + b"more", "zstd", sha256(b"n" * 1000), {400}),
    "zstd: two frames": (FRAME + FRAME, "zstd", sha256(b"n" * 2000), {400}),
    "zstd: no zstd at all": (b"n" * 1000, "zstd", sha256(b"n" * 1000), {400}),
    "gzip": (b"\x1f\x8b" + bytes(100), "gzip", sha256(b"x"), {415}),
    "zstd twice": (FRAME, "zstd, zstd", sha256(b"n" * 1000), {415}),
}


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize("chunked", [False, True], ids=["by length", "chunked"])
def test_a_body_that_is_not_the_output_is_refused(target: Target, what: str, *, chunked: bool) -> None:
    """OPEN-058, OPEN-063: among them small bodies that unpack to far more than memory or disk hold."""
    body, encoding, digest, wanted = BODIES[what]
    path = f"{build('bodies').path}/blobs/{digest}"
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = target.head("PUT", path, f"Content-Encoding: {encoding}", framing)
    pieces = [body[begin : begin + 65536] for begin in range(0, len(body), 65536)]
    if chunked:
        pieces = [*(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]
    _expect(target, f"{what}{', chunked' if chunked else ''}", target.send(head, *pieces), wanted)


def test_a_length_beyond_the_limit_is_refused_before_the_body(target: Target) -> None:
    for length in (LIMIT + 1, 1 << 40, 1 << 62):
        got = target.send(target.head("PUT", build("huge").blob(), f"Content-Length: {length}"))
        _expect(target, f"Content-Length {length}, nothing sent", got, {413})


def test_a_sender_that_goes_on_after_its_refusal_is_cut_off(target: Target) -> None:
    """The answer is there; whoever sends terabytes after it is not read for ever."""
    sent = 0
    with socket.create_connection(target.caller.address, timeout=HANG_SECONDS) as connection:
        connection.sendall(target.head("PUT", build("huge").blob(), f"Content-Length: {1 << 40}"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
        with contextlib.suppress(OSError):
            while sent < 64 * MAX_UNWANTED:
                connection.sendall(bytes(MIB))
                sent += MIB
    target.rows.append(("goes on sending after 413", f"closed after {sent // MIB} MiB"))
    assert sent < 4 * MAX_UNWANTED


JSON_BODIES: dict[str, tuple[bytes, set[int]]] = {
    "entry: no JSON": (b"{", {422}),
    "entry: not an object": (b"[]", {422}),
    "entry: nested 100000 deep": (b"[" * 100_000, {422, 413}),
    "entry: a number of 100000 digits": (b'{"schema": ' + b"9" * 100_000 + b"}", {422}),
    "entry: NaN": (b'{"schema": NaN}', {422}),
    "entry: 2 MiB": (b'{"a": "' + b"x" * 2 * MIB + b'"}', {413}),
    "entry: no UTF-8": (b'{"a": "\xff\xfe"}', {422}),
    "entry: NUL in a name": (b'{"schema": 1, "project": "a\\u0000b"}', {422}),
}


@pytest.mark.parametrize("what", JSON_BODIES)
def test_an_entry_that_means_nothing_is_refused(target: Target, what: str) -> None:
    body, wanted = JSON_BODIES[what]
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    _expect(target, what, target.send(target.head("PUT", build("json").path, *lines), body), wanted)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "a/b", ".", "..", "a\0b", "", "x" * 65, "ü", "entry.json/"])
@pytest.mark.share(4)
def test_an_output_name_that_is_a_path_is_refused(target: Target, name: str) -> None:
    built = build("names")
    value = built.entry.to_json()
    value["outputs"][0]["name"] = name
    answer = target.caller.call("PUT", built.path, value)
    _expect(target, f"output called {name[:20]!r}", [answer.status], {422})


# Senders that take their time.


def test_slow_senders_are_given_up_and_hold_up_nobody(target: Target) -> None:
    data = os.urandom(300_000)
    blob = build("slow", data, log=None).blob()
    put = target.head("PUT", blob, f"Content-Length: {len(data)}")
    half = target.head("GET", PUBLISHED.artifact)[:-2]
    cases: dict[str, tuple[list[bytes], float, set[int]]] = {
        "connects and says nothing": ([b""], 0.0, {BROKEN}),
        "blank lines only": ([b"\r\n"] * 40, IDLE / 4, {BROKEN}),
        "half a head, then silence": ([half], 0.0, {408}),
        "head, one byte at a time": ([bytes([byte]) for byte in half[:40]], IDLE / 4, {408}),
        "one header line at a time, for ever": ([half, *([b"X-A: b\r\n"] * 40)], IDLE / 4, {408}),
        "half a body, then silence": ([put + data[:1000]], 0.0, {408}),
        "body, one byte at a time": ([put, *(data[at : at + 1] for at in range(40))], IDLE / 4, {408}),
        "chunk's length, then silence": (
            [target.head("PUT", blob, "Transfer-Encoding: chunked") + b"ffff\r\n"],
            0.0,
            {408},
        ),
    }
    found: dict[str, list[int]] = {}

    def attack(what: str) -> None:
        pieces, pause, _ = cases[what]
        found[what] = target.send(*pieces, pause=pause or 0.001, seconds=12 * IDLE)

    threads = [threading.Thread(target=attack, args=(what,)) for what in cases for _ in range(8)]
    for thread in threads:
        thread.start()
    # meanwhile everybody else is served
    while any(thread.is_alive() for thread in threads):
        assert target.caller.call("GET", PUBLISHED.artifact).status == 200
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    for what, (_, _, wanted) in cases.items():
        _expect(target, f"slow: {what}", found[what], wanted)


# Heads.


def _heads(target: Target) -> dict[str, tuple[list[bytes], set[int]]]:
    blob = build("heads", b"12345", log=None).blob()
    digest = PUBLISHED.blob()

    def put(*lines: str) -> bytes:
        return target.head("PUT", blob, *lines)

    return {
        "two different lengths": ([put("Content-Length: 5", "Content-Length: 6"), b"12345"], {400}),
        "one length twice": ([put("Content-Length: 5", "Content-Length: 5"), b"12345"], {400}),
        "length and chunked": ([put("Content-Length: 5", "Transfer-Encoding: chunked"), b"0\r\n\r\n"], {400}),
        "length -1": ([put("Content-Length: -1")], {400}),
        "length +5": ([put("Content-Length: +5"), b"12345"], {400}),
        "length 0x5": ([put("Content-Length: 0x5"), b"12345"], {400}),
        "length of 30 digits": ([put("Content-Length: " + "9" * 30)], {400}),
        "length of a superscript two": ([put("Content-Length: \xb2"), b"12"], {400}),
        "chunked, twice": ([put("Transfer-Encoding: chunked, chunked"), b"0\r\n\r\n"], {400, 422}),
        "chunked is not last": ([put("Transfer-Encoding: chunked, gzip"), b"0\r\n\r\n"], {400}),
        "chunk of negative length": ([put("Transfer-Encoding: chunked"), b"-1\r\n\r\n"], {400, BROKEN}),
        "chunk of 2^70 bytes": ([put("Transfer-Encoding: chunked"), b"f" * 18 + b"\r\n"], {400, BROKEN}),
        "endless chunk extension": (
            [put("Transfer-Encoding: chunked"), b"5;" + b"x" * 4 * MAX_HEAD],
            {400, 431, BROKEN},
        ),
        "endless trailers": (
            [put("Transfer-Encoding: chunked"), b"0\r\n" + b"A: b\r\n" * MAX_HEAD],
            {400, 422, 431, BROKEN},
        ),
        "a header of 1 MiB": ([target.head("GET", digest, "X-A: " + "x" * MIB)], {431, BROKEN}),
        "100000 headers": ([target.head("GET", digest, *["X-A: b"] * 100_000)], {431, BROKEN}),
        "a path of 1 MiB": ([target.head("GET", "/v1/" + "a" * MIB)], {431, BROKEN}),
        "NUL in a header": ([target.head("GET", digest, "X-A: a\0b")], {400}),
        "bare CR in a header": ([target.head("GET", digest, "X-A: a\rb")], {400}),
        "folded header": ([target.head("GET", digest, "X-A: a\r\n b")], {200, 400}),
        "space before the colon": ([target.head("GET", digest, "X-A : a")], {400}),
        "no version, as in HTTP/0.9": ([b"GET /healthz\r\n\r\n"], {200, 400, BROKEN}),
        "HTTP/9.9": ([b"GET /healthz HTTP/9.9\r\n\r\n"], {400, BROKEN}),
        "HTTP/2 preface": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], {400, 405, 421, BROKEN}),
        "TLS to a plain port": ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], {400}),
        "method of 1000 letters": ([target.head("X" * 1000, digest)], {400, BROKEN}),
        "TRACE": ([target.head("TRACE", "/healthz")], {405}),
        "CONNECT": ([b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n"], {400, 401, 404, 405, 421}),
        "upgrade to a web socket": (
            [target.head("GET", digest, "Connection: Upgrade", "Upgrade: websocket")],
            {200, 400},
        ),
        "no Host": ([b"GET / HTTP/1.1\r\n\r\n"], {400, 421}),
        "two Hosts": ([b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"], {400, 421}),
        "another Host": ([b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"], {421}),
        "two tokens": ([target.head("GET", digest, "Authorization: Bearer other")], {401}),
        "a token of 60 kB": ([target.head("GET", digest, token="x" * 60_000)], {401}),
        "a token that is no ASCII": ([target.head("GET", digest, token="\xff\xfe")], {400, 401}),
        "a million ranges": (
            [target.head("GET", digest, "Range: bytes=" + ",".join(["0-1"] * 10_000))],
            {200},
        ),
        "a range from the end of time": ([target.head("GET", digest, "Range: bytes=" + "9" * 19 + "-")], {416}),
        "a range of 10000 digits": ([target.head("GET", digest, "Range: bytes=" + "9" * 10_000 + "-")], {200, 416}),
        "10000 entity tags": (
            [target.head("GET", digest, "If-None-Match: " + ",".join(['"a"'] * 10_000))],
            {200},
        ),
    }


def test_heads_that_break_the_protocol_or_stretch_it_are_refused(target: Target) -> None:
    files = target.files()
    for what, (pieces, wanted) in _heads(target).items():
        _expect(target, what, target.send(*pieces), wanted)
        _is_unharmed(target, files)


# Paths.


PATHS = {
    "project ..": "/v1/../graph/artifacts/{key}",
    "project %2e%2e": "/v1/%2e%2e/graph/artifacts/{key}",
    "project with an encoded slash": "/v1/a%2f..%2fb/graph/artifacts/{key}",
    "project with a doubly encoded slash": "/v1/a%252f..%252fb/graph/artifacts/{key}",
    "project with a NUL": "/v1/a%00b/graph/artifacts/{key}",
    "project with a line break": "/v1/a%0d%0aX-A:%20b/graph/artifacts/{key}",
    "project in Unicode": "/v1/%C3%A4/graph/artifacts/{key}",
    "project in broken UTF-8": "/v1/%ff%fe/graph/artifacts/{key}",
    "project in raw bytes": "/v1/\xe4/graph/artifacts/{key}",
    "project of 64 letters": "/v1/" + "a" * 64 + "/graph/artifacts/{key}",
    "project of 30000 letters": "/v1/" + "a" * 30_000 + "/graph/artifacts/{key}",
    "project with a capital": "/v1/Default/graph/artifacts/{key}",
    "project meta": "/v1/meta/graph/artifacts/{key}",
    "project quarantine": "/v1/quarantine/graph/artifacts/{key}",
    "project .uploads": "/v1/.uploads/graph/artifacts/{key}",
    "no project": "/v1//graph/artifacts/{key}",
    "kind ..": "/v1/default/../artifacts/{key}",
    "kind unknown": "/v1/default/shell/artifacts/{key}",
    "kind GRAPH": "/v1/default/GRAPH/artifacts/{key}",
    "key too short": "/v1/default/graph/artifacts/abc",
    "key in capitals": "/v1/default/graph/artifacts/{KEY}",
    "key with a path behind it": "/v1/default/graph/artifacts/{key}%2f..%2f..",
    "key of dots": "/v1/default/graph/artifacts/" + "." * 64,
    "key in full-width digits": "/v1/default/graph/artifacts/" + "%EF%BC%91" * 64,
    "key with a line break": "/v1/default/graph/artifacts/{key}%0a",
    "blob entry.json": "/v1/default/graph/entries/{key}/blobs/entry.json",
    "blob ../entry.json": "/v1/default/graph/entries/{key}/blobs/..%2fentry.json",
    "blob with a suffix": "/v1/default/graph/entries/{key}/blobs/{digest}.zst",
    "absolute URL": "http://localhost/v1/default/graph/artifacts/../../../etc/passwd",
    "backslashes": "/v1/..\\..\\etc/graph/artifacts/{key}",
    "query in the name": "/v1/default/graph/artifacts/?{key}",
}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_paths_lead_nowhere_but_to_entries(target: Target, method: str) -> None:
    files = target.files()
    key = PUBLISHED.entry.key
    for what, path in PATHS.items():
        filled = path.replace("{key}", key).replace("{KEY}", key.upper()).replace("{digest}", "ab" * 32)
        body = b"x" if method == "PUT" else b""
        got = target.send(target.head(method, filled, f"Content-Length: {len(body)}"), body)
        _expect(target, f"{method}, {what}", got, {400, 404, 405, 422})
    _is_unharmed(target, files)


# Several requests on one connection.


def test_pipelined_requests_are_answered_in_order_and_not_mixed_up(target: Target) -> None:
    miss = target.head("GET", build("miss").artifact)
    hit = target.head("GET", PUBLISHED.artifact, "Range: bytes=0-9")
    wrong = target.head("PUT", f"{build('heads').path}/blobs/{'ab' * 32}", "Content-Length: 5") + b"12345"
    last = target.head("GET", "/healthz", "Connection: close")
    got = target.send(miss + hit + wrong + hit + miss + last, pause=0.01)
    target.rows.append(("six pipelined requests", ", ".join(map(str, got))))
    assert got == [404, 206, 422, 206, 404, 200]
    got = target.send(hit * 200 + last, pause=0.01)
    target.rows.append(("200 pipelined hits", f"{got.count(206)} x 206, {got[-1]}"))
    assert got == [206] * 200 + [200]


def test_a_request_hidden_in_a_body_is_a_body(target: Target) -> None:
    smuggled = target.head("DELETE", PUBLISHED.path)
    head = target.head("PUT", f"{build('heads').path}/blobs/{'ab' * 32}", f"Content-Length: {len(smuggled)}")
    got = target.send(head + smuggled, pause=0.01, seconds=2)
    _expect(target, "a DELETE inside of a body", got, {422})
    # refused before its body: what is left of the body must not be read as a request either
    head = target.head("PUT", f"{build('heads').path}/blobs/x", f"Content-Length: {len(smuggled)}")
    got = target.send(head + smuggled, pause=0.01, seconds=2)
    _expect(target, "a DELETE inside of a body that was refused unread", got, {422})


def test_many_connections_at_once_do_not_lock_anybody_out(target: Target) -> None:
    connections = [socket.create_connection(target.caller.address, timeout=HANG_SECONDS) for _ in range(300)]
    try:
        for connection in connections:
            connection.sendall(b"GET /v1/")
        assert target.caller.call("GET", PUBLISHED.artifact).status == 200
    finally:
        for connection in connections:
            connection.close()
    target.rows.append(("300 connections with half a head", "others are served"))


def test_what_was_sent_is_not_shown_to_anybody_unescaped(target: Target) -> None:
    answer = target.caller.call("GET", "/v1/%3Cscript%3E/graph/artifacts/" + PUBLISHED.entry.key)
    assert answer.status == 422
    assert json.loads(answer.body)["name"] == "invalid"
