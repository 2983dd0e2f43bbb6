from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from client import encoding, entry_stream
from client.errors import Unreachable
from client.names import Kind
from client.plans import Wanted
from client.server_calls import ServerCalls
from client.sources import ServerSource
from client.transports import open_transport
from client.transports.limits import Limits
from client.wire import Output
from tests.client.programs import build, document, entry_of
from tests.client.transports.raw_server import RawServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from client.wire import Entry
    from tests.client.transports.raw_server import Received

_QUICK = Limits(connect=1, answer=2, stall=2)


class _Entries:
    """Entries as a server sends them; a test may change the bytes."""

    def __init__(self, count: int = 3) -> None:
        self.programs = [{"model.neff": build(3000 + number)} for number in range(count)]
        self.entries = [entry_of(document(str(number)), program) for number, program in enumerate(self.programs)]

    def members(self) -> list[bytes]:
        found = []
        for entry, program in zip(self.entries, self.programs, strict=True):
            described = entry_stream.entry_bytes(entry)
            found.append(_member(str(entry_stream.name_of(entry)), described))
            found.append(_member(str(entry_stream.name_of(entry, entry.outputs[0])), program["model.neff"]))
        return found


def _member(name: str, content: bytes) -> bytes:
    return entry_stream.head(name, len(content)) + content + entry_stream.padding(len(content))


def _answer(body: bytes, *, declared: int | None = None) -> bytes:
    size = len(body) if declared is None else declared
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\nContent-Length: %d\r\n\r\n" % size + body


def _fetch(server: RawServer, entries: list[Entry], tmp_path: Path) -> list[tuple[Entry, dict[str, bytes]]]:
    calls = ServerCalls(server.url, "default", {"XDG_CONFIG_HOME": str(tmp_path)}, limits=_QUICK)
    with closing(calls), closing(calls.fetch(entries)) as stream:
        return list(stream)


def test_a_whole_stream_is_read_and_its_connection_kept(tmp_path: Path) -> None:
    made = _Entries()
    body = b"".join(made.members()) + entry_stream.END

    def script(request: Received, _: socket.socket) -> bytes:
        assert json.loads(request.body)["keys"]
        return _answer(body)

    with RawServer(script) as server:
        calls = ServerCalls(server.url, "default", {"XDG_CONFIG_HOME": str(tmp_path)}, limits=_QUICK)
        with closing(calls):
            for _ in range(2):
                found = list(calls.fetch(made.entries))
                assert [(entry.key, outputs) for entry, outputs in found] == [
                    (entry.key, program) for entry, program in zip(made.entries, made.programs, strict=True)
                ]
        assert server.connections == 1


def _cut(made: _Entries) -> bytes:
    return b"".join(made.members())[:-700]


def _no_end(made: _Entries) -> bytes:
    return b"".join(made.members())


def _unasked(made: _Entries) -> bytes:
    stranger = _Entries(5)
    return b"".join(stranger.members()[8:]) + entry_stream.END


def _twice(made: _Entries) -> bytes:
    return b"".join([*made.members(), *made.members()]) + entry_stream.END


def _no_tar(made: _Entries) -> bytes:
    return b"<html>welcome to the captive portal</html>" * 50


def _too_long(made: _Entries) -> bytes:
    entry = made.entries[0]
    name = str(entry_stream.name_of(entry, entry.outputs[0]))
    return made.members()[0] + entry_stream.head(name, 1 << 32) + bytes(5000)


def _no_entry(made: _Entries) -> bytes:
    return _member(str(entry_stream.name_of(made.entries[0])), b"{}") + entry_stream.END


@pytest.mark.parametrize("broken", [_cut, _no_end, _unasked, _twice, _no_tar, _too_long, _no_entry])
def test_a_stream_that_is_not_what_it_should_be_is_a_broken_answer(
    tmp_path: Path, broken: Callable[[_Entries], bytes]
) -> None:
    made = _Entries()
    with RawServer(lambda _request, _: _answer(broken(made))) as server, pytest.raises(Unreachable):
        _fetch(server, made.entries, tmp_path)


def test_an_output_that_is_damaged_spoils_no_other(tmp_path: Path) -> None:
    made = _Entries()
    made.programs[1] = {"model.neff": bytes(len(made.programs[1]["model.neff"]))}
    body = b"".join(made.members()) + entry_stream.END
    with RawServer(lambda _request, _: _answer(body)) as server:
        found = _fetch(server, made.entries, tmp_path)
    assert [entry.key for entry, _ in found] == [made.entries[0].key, made.entries[2].key]


def test_a_frame_that_unpacks_to_more_than_the_entry_says_is_stopped(tmp_path: Path) -> None:
    made = _Entries(2)
    bomb = encoding.encode(bytes(64 << 20))
    sha256 = made.entries[0].outputs[0].sha256
    entry = entry_of(document("bomb"), {"model.neff": b"x"})
    lying = type(entry).from_json(
        {**entry.to_json(), "outputs": [Output("model.neff", sha256, 100, "zstd", len(bomb)).to_json()]}
    )
    made.entries[0], made.programs[0] = lying, {"model.neff": bomb}
    body = b"".join(made.members()) + entry_stream.END
    with RawServer(lambda _request, _: _answer(body)) as server:
        assert [entry.key for entry, _ in _fetch(server, made.entries, tmp_path)] == [made.entries[1].key]


def test_what_a_stream_lacks_is_asked_for_singly(tmp_path: Path) -> None:
    made = _Entries()
    body = b"".join(made.members()[:2]) + entry_stream.END
    main = {
        entry.outputs[0].sha256: program["model.neff"]
        for entry, program in zip(made.entries, made.programs, strict=True)
    }
    gone = made.entries[2].outputs[0].sha256

    def script(request: Received, _: socket.socket) -> bytes:
        if request.method == "POST":
            return _answer(body)
        digest = request.target.rpartition("/")[2]
        if digest == gone:
            problem = b'{"name": "not_found"}'
            head = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n"
            return head % len(problem) + problem
        return _answer(main[digest])

    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    with RawServer(script) as server:
        transport = open_transport(server.url, "default", environ)
        source = ServerSource(ServerCalls(server.url, "default", environ, limits=_QUICK), transport)
        with closing(source):
            found = {entry.key: outputs for entry, outputs in source.fetch(made.entries, {"model.neff"})}
    assert found == {
        made.entries[0].key: made.programs[0],
        made.entries[1].key: made.programs[1],
        made.entries[2].key: None,
    }


@pytest.mark.parametrize("value", [{}, {"found": [{}]}, {"found": 3}, [], {"found": [None]}])
def test_a_lookup_that_breaks_the_contract_is_no_empty_cache(tmp_path: Path, value: Any) -> None:
    body = json.dumps(value).encode()
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    with RawServer(lambda _request, _: _answer(body)) as server:
        calls = ServerCalls(server.url, "default", environ, limits=_QUICK)
        source = ServerSource(calls, open_transport(server.url, "default", environ))
        with closing(source), pytest.raises(Unreachable):
            source.find([Wanted("default", Kind.GRAPH, "0" * 64)])


def test_an_entry_that_was_not_asked_for_is_a_broken_answer(tmp_path: Path) -> None:
    entry = entry_of(document(), {"model.neff": b"x"})
    body = json.dumps({"found": [entry.to_json()]}).encode()
    with RawServer(lambda _request, _: _answer(body)) as server:
        calls = ServerCalls(server.url, "default", {"XDG_CONFIG_HOME": str(tmp_path)}, limits=_QUICK)
        with closing(calls), pytest.raises(Unreachable, match="not asked for"):
            calls.lookup([(Kind.GRAPH, "0" * 64)])


@pytest.mark.parametrize("value", [{}, {"nearest": [{"differences": 1}]}, {"nearest": 2}])
def test_an_explanation_that_breaks_the_contract_is_a_broken_answer(tmp_path: Path, value: Any) -> None:
    body = json.dumps(value).encode()
    with RawServer(lambda _request, _: _answer(body)) as server:
        calls = ServerCalls(server.url, "default", {"XDG_CONFIG_HOME": str(tmp_path)}, limits=_QUICK)
        with closing(calls), pytest.raises(Unreachable):
            calls.explain({"kind": "graph"})


def test_a_stored_plan_that_breaks_off_is_no_shorter_plan(tmp_path: Path) -> None:
    body = b'{"kind": "graph", "key": "' + b"0" * 64 + b'"}\n'

    def script(_request: Received, connection: socket.socket) -> None:
        connection.sendall(_answer(body, declared=2 * len(body)))

    with RawServer(script) as server:
        calls = ServerCalls(server.url, "default", {"XDG_CONFIG_HOME": str(tmp_path)}, limits=_QUICK)
        with closing(calls), pytest.raises(Unreachable):
            calls.plan("llama")
