"""Requests that cost much more to serve than to send: bounded, out of others' way, and over when their sender is."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from cache_server.compression import PlainBytes
from cache_server.http import uploads
from cache_server.http.asgi import watching
from client import encoding
from client.names import MAIN_OUTPUT
from client.transports import publishing
from client.wire import Output
from tests.cache_server.harness import TOKEN, build, problem, sha256

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import Built, InProcess

MIB = 1 << 20
PIECE = 9 * 128 * 1024
"""Plain bytes of the largest piece: eight blocks, and the rest of one that began before."""


def _frames() -> dict[str, bytes]:
    data = os.urandom(3 * MIB)
    levels = {
        f"level {level}": zstandard.ZstdCompressor(level=level).compress(bytes(40 * MIB)) for level in (-1, 3, 19)
    }
    return {
        **levels,
        "random": zstandard.ZstdCompressor().compress(data),
        "mixed": zstandard.ZstdCompressor().compress(data[:MIB] + bytes(20 * MIB) + data[MIB:]),
        "checksum": zstandard.ZstdCompressor(write_checksum=True).compress(bytes(20 * MIB)),
        "no size": zstandard.ZstdCompressor(write_content_size=False).compress(bytes(20 * MIB)),
        "empty": zstandard.ZstdCompressor().compress(b""),
        "one byte": zstandard.ZstdCompressor(write_checksum=True).compress(b"a"),
    }


@pytest.mark.parametrize("fed", [1, 3, 7, 4096, 64 * MIB])
def test_few_bytes_of_a_frame_are_unpacked_in_small_pieces(fed: int) -> None:
    for name, frame in _frames().items():
        if fed < 4096 < len(frame):
            continue
        plain, digest = PlainBytes("zstd", limit=1 << 40), hashlib.sha256()
        for begin in range(0, len(frame), fed):
            for piece in plain.feed(frame[begin : begin + fed]):
                assert len(piece) <= PIECE, name
                digest.update(piece)
        plain.finish()
        assert (
            digest.digest() == hashlib.sha256(zstandard.ZstdDecompressor().decompressobj().decompress(frame)).digest()
        )


@pytest.mark.parametrize("fed", [1, 5, 64 * MIB])
def test_what_follows_a_frame_or_is_missing_of_it_is_still_an_error(fed: int) -> None:
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(MIB) + os.urandom(300))
    for bad in (frame + b"x", frame + frame, frame[:-1], frame[:-4], frame[:3], b"x" * 100, frame[:20] + frame[21:]):
        plain = PlainBytes("zstd", limit=1 << 40)
        with pytest.raises(encoding.FormatError):  # noqa: PT012 - where it is noticed depends on how it is fed
            for begin in range(0, len(bad), fed):
                for _ in plain.feed(bad[begin : begin + fed]):
                    pass
            plain.finish()


def test_a_frame_that_stands_for_out_of_all_proportion_is_refused(server: InProcess) -> None:
    size = encoding.FREE_SIZE + MIB
    frame = zstandard.ZstdCompressor().compress(bytes(size))
    assert size > encoding.most_plain(len(frame))
    built = build(neff=b"", packed=frame, log=None)
    digest = sha256(bytes(size))
    answer = server.call("PUT", f"{built.path}/blobs/{digest}", content=frame, headers={"Content-Encoding": "zstd"})
    assert problem(answer) == (413, "too_large")
    assert answer.json()["detail"] == "it unpacks to more than 1000 times its size"
    assert server.files() == []


def test_what_our_clients_pack_is_taken_in(server: InProcess) -> None:
    """Logs, zeros up to the free size, and what is denser than allowed: that goes plain."""
    log = b"a line of a compiler's log, with a number: 1234567\n" * 200_000
    zeros = bytes(encoding.FREE_SIZE + MIB)
    for data, coding in ((log, "zstd"), (bytes(8 * MIB), "zstd"), (zeros, "identity")):
        built = build(f"{len(data)}", neff=data, log=None)
        output, packed = publishing.as_stored(built.entry, Output(MAIN_OUTPUT, sha256(data), len(data)), data)
        assert output.encoding == coding
        headers = {"Content-Encoding": "zstd"} if coding == "zstd" else {}
        assert server.call("PUT", built.blob(), content=packed, headers=headers).status_code == 201


class Leaving:
    """A sender that has sent everything, and goes as soon as ``gone`` is set."""

    def __init__(self, body: bytes, gone: threading.Event) -> None:
        self._body: bytes | None = body
        self._gone = gone

    async def __call__(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        while not self._gone.is_set():  # noqa: ASYNC110 - set from a worker thread
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}


def _call(server: InProcess, method: str, path: str, receive: Leaving, **headers: str) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    given = {"host": "localhost", "authorization": f"Bearer {TOKEN}", **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
    }
    server.run(server.app(scope, receive, send))
    return sent


def _leaves_after(monkeypatch: pytest.MonkeyPatch, size: int) -> tuple[threading.Event, list[int]]:
    """Return what a `Leaving` goes by, once so many bytes were unpacked, and the count of those bytes."""
    gone, unpacked = threading.Event(), [0]
    count = PlainBytes._count

    def counting(plain: PlainBytes, piece: memoryview) -> memoryview:
        unpacked[0] += len(piece)
        if unpacked[0] >= size:
            gone.set()
            threading.Event().wait(0.02)  # the event loop must notice
        return count(plain, piece)

    monkeypatch.setattr(PlainBytes, "_count", counting)
    monkeypatch.setattr(uploads, "_STEP", MIB)
    return gone, unpacked


def test_an_upload_whose_sender_is_gone_is_not_unpacked_to_its_end(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 60 * MIB
    frame = zstandard.ZstdCompressor().compress(bytes(size))
    built = build(log=None)
    gone, unpacked = _leaves_after(monkeypatch, MIB)
    sent = _call(server, "PUT", f"{built.path}/blobs/{'0' * 64}", Leaving(frame, gone), content_encoding="zstd")
    assert sent[0]["status"] == 400
    assert MIB <= unpacked[0] < size
    assert server.files() == []


def test_an_answer_that_is_unpacked_ends_with_its_reader(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 40 * MIB
    data = bytes(size)
    built = build(neff=data, packed=zstandard.ZstdCompressor().compress(data), log=None)
    server.publish(built)
    gone, unpacked = _leaves_after(monkeypatch, 4 * MIB)
    sent = _call(server, "GET", built.artifact, Leaving(b"", gone))
    assert sent[0]["status"] == 200
    assert 4 * MIB <= unpacked[0] < size
    unpacked[0] = 0
    sent = _call(server, "GET", built.artifact, Leaving(b"", gone), range="bytes=-10")
    assert sent[0]["status"] == 200
    assert unpacked[0] < size


def test_unpacking_leaves_the_workers_to_others(make_server: Callable[..., InProcess]) -> None:
    """However many frames are unpacked, no more threads are at it than leave half of the processors alone."""
    server = make_server(threads=4)
    running, most, lock = [0], [0], threading.Lock()

    def slow() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.02)
        with lock:
            running[0] -= 1

    async def crowd() -> int:
        slow_ones = [asyncio.create_task(server.service.workers.run_slow(slow)) for _ in range(20)]
        await server.service.workers.run(lambda: None)
        left = sum(not task.done() for task in slow_ones)
        await asyncio.gather(*slow_ones)
        return left

    assert server.run(crowd()) > 0
    assert most[0] <= max(1, len(os.sched_getaffinity(0)) // 2)


def test_a_verdict_that_nobody_waits_for_is_left_to_the_scrub(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: Built = build(neff=os.urandom(3 * MIB), log=None)
    server.publish(built)
    (output,) = built.entry.outputs
    path = server.output_path(built)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(data)
    gone, _ = _leaves_after(monkeypatch, 1)
    body = b'{"sha256": "%s"}' % output.sha256.encode()
    _call(server, "POST", f"{built.path}/suspect", Leaving(body, gone), content_type="application/json")
    for _ in range(1000):  # written down on a worker thread that nobody waits for
        if server.service.scrubbing.suspected():
            break
        threading.Event().wait(0.01)
    assert server.service.scrubbing.suspected() == 1
    assert server.call("GET", "/admin/v1/scrub").json() == {"state": "never"}
    assert server.entry_path(built).exists()


def test_a_look_up_never_answers_more_than_can_be_held(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    every = [build(f"entry {number}") for number in range(3)]
    for built in every:
        server.publish(built)
    asked = {"keys": [{"kind": "graph", "key": built.entry.key} for built in every]}
    assert len(server.call("POST", "/v1/default/lookup", json=asked).json()["found"]) == 3
    monkeypatch.setattr("cache_server.routes.projects.MAX_FOUND", 1000)
    answer = server.call("POST", "/v1/default/lookup", json=asked)
    assert problem(answer) == (413, "too_large")
    assert "fewer keys" in answer.json()["detail"]


def test_who_is_watched_is_seen_to_go(server: InProcess) -> None:
    gone = threading.Event()

    async def look() -> bool:
        async with watching(Leaving(b"", gone)) as future:
            gone.set()
            await asyncio.wait_for(future, 10)
            return future.done()

    assert server.run(look())
