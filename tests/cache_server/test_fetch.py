from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from cache_server.services.fetching import EntryStream
from cache_server.stores.base import StoreError
from client import entry_stream
from client.names import Kind
from tests.cache_server.harness import build, problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.wire import Entry
    from tests.cache_server.harness import Built, InProcess


def _keys(*builds: Built) -> list[dict[str, str]]:
    return [{"kind": str(built.entry.kind), "key": built.entry.key} for built in builds]


def _received(body: bytes, names: set[str] | None = None) -> list[tuple[Entry, dict[str, bytes]]]:
    """Read a whole stream, as the bytes of outputs are stored."""
    members = entry_stream.Members(io.BytesIO(body))
    found = []
    while (member := members.next()) is not None:
        entry = entry_stream.read_entry(member)
        outputs = {
            output.name: members.expect(str(entry_stream.name_of(entry, output))).read_small(1 << 30)
            for output in entry.outputs
            if names is None or output.name in names
        }
        found.append((entry, outputs))
    return found


def _is_open(path: Path) -> bool:
    """Return whether this process holds a descriptor of the file."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(link.readlink())
    return path in links


def test_many_entries_come_in_one_answer_in_the_order_asked(server: InProcess) -> None:
    builds = [build(f"entry {number}", b"neff" * (number + 1)) for number in range(20)]
    for built in builds:
        server.publish(built)
    wanted = [*reversed(builds), build("missing")]
    answer = server.call("POST", "/v1/default/fetch", json={"keys": _keys(*wanted)})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-tar"
    assert _received(answer.content) == [(built.entry, built.stored) for built in reversed(builds)]


def test_only_the_wanted_outputs_are_sent_and_as_they_are_stored(server: InProcess) -> None:
    plain = b"compresses well " * 1000
    built = build("packed", plain, packed=zstandard.compress(plain))
    server.publish(built)
    body = {"keys": _keys(built), "outputs": ["model.neff"]}
    answer = server.call("POST", "/v1/default/fetch", json=body)
    ((entry, outputs),) = _received(answer.content, {"model.neff"})
    assert entry == built.entry
    assert outputs == {"model.neff": built.stored["model.neff"]}


def test_an_entry_with_a_lost_output_is_left_out_and_the_others_still_come(server: InProcess) -> None:
    whole, broken, last = build("whole"), build("broken", b"x" * 50), build("last")
    for built in (whole, broken, last):
        server.publish(built)
    server.output_path(broken, "compile.log").unlink()
    answer = server.call("POST", "/v1/default/fetch", json={"keys": _keys(whole, broken, last)})
    assert [entry.key for entry, _ in _received(answer.content)] == [whole.entry.key, last.entry.key]


def test_no_entry_crosses_projects_or_the_callers_rights(make_server: Callable[..., InProcess]) -> None:
    server = make_server(anonymous="read")
    ours, foreign = build("ours"), build("theirs", project="other")
    for built in (ours, foreign):
        server.publish(built)
    answer = server.call("POST", "/v1/default/fetch", json={"keys": _keys(ours, foreign)})
    assert [entry.project for entry, _ in _received(answer.content)] == ["default"]
    refused = make_server(folder=server.folder / "closed").call(
        "POST", "/v1/default/fetch", json={"keys": _keys(ours)}, token=None
    )
    assert problem(refused) == (401, "unauthorized")


@pytest.mark.parametrize(
    "body",
    [
        {"keys": [{"kind": "graph", "key": "../../etc/passwd"}]},
        {"keys": [{"kind": "neither", "key": "0" * 64}]},
        {"keys": [], "outputs": ["../x"]},
        {"keys": [{"kind": "graph", "key": "0" * 64}] * 5000},
    ],
)
def test_a_malformed_question_is_refused_in_one_sentence(server: InProcess, body: dict[str, Any]) -> None:
    assert problem(server.call("POST", "/v1/default/fetch", json=body)) == (422, "invalid")


def test_a_store_that_fails_in_the_middle_never_looks_like_a_whole_answer(server: InProcess) -> None:
    built = build("large", b"n" * (3 << 20))
    server.publish(built)
    path = server.output_path(built)
    stream = EntryStream(server.service.store, server.service.database, "default", [("graph", built.entry.key)], None)
    pieces = [stream.next()]
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(StoreError):
        pieces.extend(iter(stream.next, None))
    stream.close()
    body = b"".join(piece for piece in pieces if piece)
    with pytest.raises(ValueError, match="the stream ends"):
        _received(body)


def test_a_caller_that_hangs_up_leaves_no_file_open(server: InProcess) -> None:
    built = build("large", b"n" * (8 << 20))
    server.publish(built)
    stream = EntryStream(server.service.store, server.service.database, "default", [("graph", built.entry.key)], None)
    assert stream.next()
    assert _is_open(server.output_path(built))
    stream.close()
    assert not _is_open(server.output_path(built))
    assert stream.next() is None


def test_equal_entries_make_equal_bytes(server: InProcess) -> None:
    built = build("same", kind=Kind.EAGER)
    server.publish(built)
    body = json.dumps({"keys": _keys(built)}).encode()
    headers = {"Content-Type": "application/json"}
    first, second = (server.call("POST", "/v1/default/fetch", content=body, headers=headers).content for _ in range(2))
    assert first == second
