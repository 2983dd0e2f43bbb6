"""What a server that is broken, slow, hostile or simply another one can do to a job: nothing but a clear error."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from client.artifact import Compiled
from client.cache import Cache
from client.encoding import encode
from client.errors import ConfigurationError, Denied, Failure, LeaseLost, Refused, TransportError, Unreachable
from client.names import Kind
from client.settings import Settings
from client.transports import open_transport
from client.transports.base import Damaged
from client.transports.dial import dial
from client.transports.endpoint import Origin
from client.transports.http import HttpTransport
from client.transports.limits import DEFAULT_LIMITS, Limits
from client.transports.patience import Patience, patient
from client.transports.redirects import SETTING, Redirects, is_elsewhere
from client.wire import Granted, Holder, Wait
from tests.client.programs import build, document, entry_of
from tests.client.transports.raw_server import RawServer, answer
from tests.fakes.waiting import HANG_SECONDS
from tests.support.faulty_server import rightly
from tests.support.s3_faults import PassedTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.client.transports.raw_server import Received

pytestmark = pytest.mark.once

SECRET = "s3cret-token-of-a-job"
ENVIRONMENT = {"NEURON_CACHE_TOKEN": SECRET}
DOCUMENT = document()
KEY = DOCUMENT.key
NEFF = build()
ENTRY = entry_of(DOCUMENT, {"model.neff": NEFF})
HEADER = ENTRY.to_header() or ""
HOLDER = Holder("node", 1)
LEASE = Granted("lease-token", 1, 30.0)


# short enough to wait for
QUICK = Limits(connect=0.3, answer=0.3, stall=0.3)


@contextmanager
def transport_to(
    script: Callable[[Received, socket.socket], bytes | None], limits: Limits = DEFAULT_LIMITS
) -> Iterator[tuple[HttpTransport, RawServer]]:
    with RawServer(script) as server:
        transport = HttpTransport(server.url, "default", ENVIRONMENT, limits=limits)
        try:
            yield transport, server
        finally:
            transport.close()


def fixed(raw: bytes) -> Callable[[Received, socket.socket], bytes]:
    return lambda request, sock: raw


def hit(body: bytes = NEFF, **headers: Any) -> bytes:
    return answer(200, body, Neff_Entry=HEADER, **headers)


def problem(status: int, name: str, detail: str = "") -> bytes:
    body = json.dumps({"name": name, "status": status, "title": "A title.", "detail": detail}).encode()
    return answer(status, body, Content_Type="application/problem+json")


def test_a_hit_is_one_request_with_verified_bytes() -> None:
    with transport_to(fixed(hit())) as (transport, server):
        found = transport.fetch(Kind.GRAPH, KEY)
        assert found is not None
        assert found.neff == NEFF
        assert found.entry == ENTRY.without_document()
        [request] = server.requests
        assert request.target == f"/v1/default/graph/artifacts/{KEY}"
        assert request.headers["authorization"] == f"Bearer {SECRET}"


def test_connections_are_kept() -> None:
    with transport_to(fixed(hit())) as (transport, server):
        for _ in range(5):
            assert transport.fetch(Kind.GRAPH, KEY) is not None
        assert (server.connections, len(server.requests)) == (1, 5)


def test_a_base_path_stands_before_every_call() -> None:
    with RawServer(fixed(problem(404, "not_found"))) as server:
        transport = HttpTransport(f"{server.url}/team/neff/", "default", ENVIRONMENT)
        assert transport.fetch(Kind.GRAPH, KEY) is None
        assert transport.address == f"{server.url}/team/neff"
        assert server.requests[0].target == f"/team/neff/v1/default/graph/artifacts/{KEY}"
        transport.close()


def test_other_bytes_than_the_entry_names_are_never_handed_out() -> None:
    with transport_to(fixed(hit(NEFF[:-1] + b"!"))) as (transport, _), pytest.raises(Damaged) as caught:
        transport.fetch(Kind.GRAPH, KEY)
    assert caught.value.sha256 == ENTRY.outputs[0].sha256


@pytest.mark.parametrize("body", [NEFF[:-1], NEFF + b"!", b""])
def test_another_length_than_the_entry_names_is_damage(body: bytes) -> None:
    with transport_to(fixed(hit(body))) as (transport, _), pytest.raises(Damaged):
        transport.fetch(Kind.GRAPH, KEY)


def test_an_answer_that_breaks_off_is_not_taken_for_damage() -> None:
    def break_off(request: Received, sock: socket.socket) -> None:
        sock.sendall(hit()[:-10])

    with transport_to(break_off) as (transport, _), pytest.raises(Unreachable, match="breaks off"):
        transport.fetch(Kind.GRAPH, KEY)


def test_a_reset_in_the_middle_of_a_body_is_unreachable() -> None:
    def reset(request: Received, sock: socket.socket) -> None:
        sock.sendall(hit()[:-10])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()

    with transport_to(reset) as (transport, _), pytest.raises(Unreachable):
        transport.fetch(Kind.GRAPH, KEY)


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9.9\r\n", b"\0" * 100, b"HTTP/1.1 200\r\n" + b"a" * 70000, b"\r\n"])
def test_garbage_in_place_of_an_answer_is_unreachable(raw: bytes) -> None:
    def garbage(request: Received, sock: socket.socket) -> None:
        sock.sendall(raw)

    with transport_to(garbage) as (transport, _), pytest.raises(Unreachable):
        transport.fetch(Kind.GRAPH, KEY)


@pytest.mark.parametrize("header", ["!!", "bm90IGpzb24=", "e30="])
def test_a_broken_entry_header_is_unreachable(header: str) -> None:
    with transport_to(fixed(answer(200, NEFF, Neff_Entry=header))) as (transport, _), pytest.raises(Unreachable):
        transport.fetch(Kind.GRAPH, KEY)


def test_the_entry_of_another_key_is_never_taken() -> None:
    other = entry_of(document("another"), {"model.neff": NEFF}).to_header()
    with transport_to(fixed(answer(200, NEFF, Neff_Entry=other or ""))) as (transport, _), pytest.raises(Unreachable):
        transport.fetch(Kind.GRAPH, KEY)


def test_a_server_that_never_answers_costs_its_deadline() -> None:
    gone = threading.Event()

    def deaf(request: Received, sock: socket.socket) -> None:
        gone.wait(HANG_SECONDS)

    with transport_to(deaf, QUICK) as (transport, _):
        with pytest.raises(Unreachable, match="no answer in time"):
            transport.fetch(Kind.GRAPH, KEY)
        gone.set()


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nX: ", hit()[:-100]])
def test_a_server_that_sends_one_byte_now_and_then_is_given_up(before: bytes) -> None:
    gone = threading.Event()

    def trickle(request: Received, sock: socket.socket) -> None:
        sock.sendall(before)
        while not gone.wait(0.05):
            sock.sendall(b"H")

    with transport_to(trickle, QUICK) as (transport, _):
        with pytest.raises(Unreachable):
            transport.fetch(Kind.GRAPH, KEY)
        gone.set()


def test_a_server_that_takes_no_upload_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        port = listener.getsockname()[1]
        transport = HttpTransport(f"http://127.0.0.1:{port}", "default", ENVIRONMENT, limits=QUICK)
        outputs = {"model.neff": os.urandom(16 << 20)}
        with pytest.raises(Unreachable, match="no answer in time"):
            transport.publish(entry_of(DOCUMENT, outputs), outputs, LEASE)


def test_no_server_at_all_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    transport = HttpTransport(f"http://127.0.0.1:{port}", "default", ENVIRONMENT)
    with pytest.raises(Unreachable, match="refused"):
        transport.fetch(Kind.GRAPH, KEY)


def test_a_kept_connection_that_the_server_closed_is_no_failure() -> None:
    def once(request: Received, sock: socket.socket) -> None:
        sock.sendall(hit())  # says nothing of closing, and closes

    with transport_to(once) as (transport, server):
        for _ in range(3):
            assert transport.fetch(Kind.GRAPH, KEY) is not None
        assert len(server.requests) == 3


def test_a_kept_connection_closed_just_now_is_tried_once_more() -> None:
    served: list[int] = []

    def hang_up_on_the_second(request: Received, sock: socket.socket) -> bytes | None:
        served.append(id(sock))
        return None if served.count(id(sock)) == 2 else hit()

    with transport_to(hang_up_on_the_second) as (transport, server):
        assert transport.fetch(Kind.GRAPH, KEY) is not None
        assert transport.fetch(Kind.GRAPH, KEY) is not None
        assert (server.connections, len(server.requests)) == (2, 3)


def test_a_server_that_always_hangs_up_is_not_asked_for_ever() -> None:
    with transport_to(lambda request, sock: None) as (transport, server):
        with pytest.raises(Unreachable):
            transport.fetch(Kind.GRAPH, KEY)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "name", "error"),
    [
        (401, "unauthorized", Denied),
        (403, "forbidden", Denied),
        (404, "not_found", Denied),
        (404, "", Unreachable),
        (409, "lease_lost", LeaseLost),
        (409, "blob_missing", Refused),
        (413, "too_large", Refused),
        (421, "wrong_host", Refused),
        (422, "invalid", Refused),
        (429, "throttled", Refused),
        (507, "store_full", Refused),
        (500, "internal", Unreachable),
        (502, "", Unreachable),
        (503, "not_ready", Unreachable),
        (504, "", Unreachable),
        (302, "", Unreachable),
    ],
)
def test_every_no_has_its_meaning(status: int, name: str, error: type[TransportError]) -> None:
    raw = problem(status, name, "because") if name else answer(status, b"<html>no</html>", Content_Type="text/html")
    with transport_to(fixed(raw)) as (transport, _):
        with pytest.raises(error) as caught:
            transport.acquire(Kind.GRAPH, KEY, HOLDER)
        assert type(caught.value) is error
        if isinstance(caught.value, Refused):
            assert (caught.value.status, caught.value.name) == (status, name)
        assert SECRET not in str(caught.value)


def test_the_404_of_a_stranger_is_not_a_miss() -> None:
    raw = answer(404, b"<html>nginx</html>", Content_Type="text/html")
    with transport_to(fixed(raw)) as (transport, _), pytest.raises(Unreachable):
        transport.fetch(Kind.GRAPH, KEY)


def test_a_miss_is_none() -> None:
    with transport_to(fixed(problem(404, "not_found"))) as (transport, _):
        assert transport.fetch(Kind.GRAPH, KEY) is None
        assert transport.entry(Kind.GRAPH, KEY) is None
        assert transport.read_output(ENTRY, "model.neff") is None


def test_giving_back_a_lost_lease_is_no_error() -> None:
    with transport_to(fixed(problem(409, "lease_lost"))) as (transport, server):
        transport.release(Kind.GRAPH, KEY, LEASE, Failure("transient", "killed"))
        assert json.loads(server.requests[0].body)["failure"]["class"] == "transient"
        with pytest.raises(LeaseLost):
            transport.renew(Kind.GRAPH, KEY, LEASE)


def test_a_redirect_is_followed_but_the_token_stays_at_home() -> None:
    with RawServer(fixed(answer(200, NEFF))) as bucket:
        away = f"http://localhost:{bucket.port}/bucket/object?X-Signature=opens-it"
        with transport_to(fixed(answer(307, Location=away, Neff_Entry=HEADER))) as (transport, server):
            found = transport.fetch(Kind.GRAPH, KEY)
        assert found is not None
        assert found.neff == NEFF
        assert "authorization" in server.requests[0].headers
        assert "authorization" not in bucket.requests[0].headers
        assert bucket.requests[0].target == "/bucket/object?X-Signature=opens-it"


def test_a_redirect_within_the_origin_keeps_the_token() -> None:
    def moved(request: Received, sock: socket.socket) -> bytes:
        return hit() if request.target.startswith("/new") else answer(301, Location=f"/new{request.target}")

    with transport_to(moved) as (transport, server):
        assert transport.fetch(Kind.GRAPH, KEY) is not None
        assert all(request.headers["authorization"] == f"Bearer {SECRET}" for request in server.requests)


def test_what_an_object_store_stores_compressed_is_unpacked_though_it_does_not_say_so() -> None:
    plain = b"compile log " * 1000
    packed = encode(plain)
    outputs = {"model.neff": NEFF, "compile.log": plain}
    value = entry_of(DOCUMENT, outputs).to_json()
    value["outputs"][1].update(encoding="zstd", stored_size=len(packed))
    entry = type(ENTRY).from_json(value)
    with RawServer(fixed(answer(200, packed))) as bucket:
        away = f"http://localhost:{bucket.port}/object"
        with transport_to(fixed(answer(307, Location=away))) as (transport, _):
            assert transport.read_output(entry, "compile.log") == plain


def test_the_no_of_a_redirect_target_says_nothing_about_our_rights() -> None:
    with RawServer(fixed(answer(403, b"<Error>expired</Error>"))) as bucket:
        away = f"http://localhost:{bucket.port}/object?X-Signature=opens-it"
        with transport_to(fixed(answer(307, Location=away))) as (transport, _):
            with pytest.raises(Unreachable) as caught:
                transport.fetch(Kind.GRAPH, KEY)
            assert "opens-it" not in str(caught.value)


def test_a_no_with_a_broken_body_is_still_a_no() -> None:
    raw = answer(401, b"not json", Content_Type="application/problem+json")
    with transport_to(fixed(raw)) as (transport, _), pytest.raises(Denied):
        transport.fetch(Kind.GRAPH, KEY)


@pytest.mark.parametrize("location", ["", "ftp://elsewhere/", "http://", "/", "http://a\0b/", "http://a b/", "/a b"])
def test_a_redirect_to_nowhere_or_in_a_circle_ends(location: str) -> None:
    with transport_to(fixed(answer(302, Location=location))) as (transport, server):
        with pytest.raises(Unreachable):
            transport.fetch(Kind.GRAPH, KEY)
        assert len(server.requests) <= 6


def test_an_upload_is_never_redirected() -> None:
    with RawServer(fixed(answer(201, b"{}"))) as thief:
        raw = answer(307, Location=f"http://localhost:{thief.port}/")
        with transport_to(fixed(raw)) as (transport, _), pytest.raises(Unreachable, match="only GET follows"):
            transport.publish(ENTRY, {"model.neff": NEFF}, LEASE)
        assert not thief.requests


def test_an_entry_too_large_for_a_header_is_fetched_by_its_own_route() -> None:
    def without_header(request: Received, sock: socket.socket) -> bytes:
        body = NEFF if "/artifacts/" in request.target or "/blobs/" in request.target else None
        return answer(200, json.dumps(ENTRY.to_json()).encode() if body is None else body)

    with transport_to(without_header) as (transport, _):
        found = transport.fetch(Kind.GRAPH, KEY)
        assert found is not None
        assert (found.neff, found.entry) == (NEFF, ENTRY)


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_zstd_frame_never_unpacks_to_more_or_less_than_the_entry_says(difference: int) -> None:
    size = len(NEFF) + difference
    value = ENTRY.to_json()
    packed = encode(NEFF)
    value["outputs"][0].update(encoding="zstd", size=size, stored_size=len(packed))
    header = type(ENTRY).from_json(value).to_header() or ""
    raw = answer(200, packed, Neff_Entry=header, Content_Encoding="zstd")
    with transport_to(fixed(raw)) as (transport, _), pytest.raises(Damaged):
        transport.fetch(Kind.GRAPH, KEY)


def chunked(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nNeff-Entry: {HEADER}\r\n\r\n".encode()
    pieces = [body[start : start + 1000] for start in range(0, len(body), 1000)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])


def test_a_proxy_may_send_in_chunks() -> None:
    with transport_to(fixed(chunked(NEFF))) as (transport, server):
        for _ in range(2):
            found = transport.fetch(Kind.GRAPH, KEY)
            assert found is not None
            assert found.neff == NEFF
        assert server.connections == 1


@pytest.mark.parametrize("body", [NEFF[:-1], NEFF + b"!"])
def test_chunks_that_hold_more_or_less_than_the_entry_names_are_damage(body: bytes) -> None:
    with transport_to(fixed(chunked(body))) as (transport, _), pytest.raises(Damaged):
        transport.fetch(Kind.GRAPH, KEY)


def test_an_encoding_nobody_asked_for_is_refused() -> None:
    with transport_to(fixed(hit(Content_Encoding="br"))) as (transport, _), pytest.raises(Unreachable, match="'br'"):
        transport.fetch(Kind.GRAPH, KEY)


@pytest.mark.parametrize("raw", [b"no json", b"[" * 100_000, b'{"state": "maybe"}', b"[]", b'{"state": "granted"}'])
def test_a_lease_answer_that_breaks_the_contract_is_unreachable(raw: bytes) -> None:
    with transport_to(fixed(answer(200, raw))) as (transport, _), pytest.raises(Unreachable):
        transport.acquire(Kind.GRAPH, KEY, HOLDER)


@pytest.mark.parametrize("raw", [b"[]", b'{"revoked": 1}', b'{"revoked": [{"kind": "graph"}]}'])
def test_a_list_of_revoked_entries_that_breaks_the_contract_is_unreachable(raw: bytes) -> None:
    with transport_to(fixed(answer(200, raw))) as (transport, _), pytest.raises(Unreachable):
        transport.revoked()


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.transports.answers.MAX_ENTRY_JSON", 1000)
    with transport_to(fixed(answer(200, b" " * 2000))) as (transport, _), pytest.raises(Unreachable, match="1000"):
        transport.entry(Kind.GRAPH, KEY)


def test_a_refusal_before_the_body_was_taken_is_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(problem(413, "too_large"))
            # closed with bytes unread: the connection is reset while the client still sends

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        outputs = {"model.neff": os.urandom(8 << 20)}
        transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", "default", ENVIRONMENT)
        with pytest.raises(Refused) as caught:
            transport.publish(entry_of(DOCUMENT, outputs), outputs, LEASE)
        assert caught.value.name == "too_large"
        thread.join(HANG_SECONDS)


def test_missing_outputs_are_uploaded_again_at_most_twice() -> None:
    def forgetful(request: Received, sock: socket.socket) -> bytes:
        return answer(201, b"{}") if "/blobs/" in request.target else problem(409, "blob_missing")

    with transport_to(forgetful) as (transport, server):
        with pytest.raises(Refused) as caught:
            transport.publish(ENTRY, {"model.neff": NEFF}, LEASE)
        assert caught.value.name == "blob_missing"
        assert sum("/blobs/" in request.target for request in server.requests) == 3


def test_a_late_publisher_asks_before_it_uploads() -> None:
    with transport_to(fixed(answer(200, json.dumps(ENTRY.to_json()).encode()))) as (transport, server):
        published = transport.publish(ENTRY, {"model.neff": NEFF}, None)
        assert not published.created
        assert [request.method for request in server.requests] == ["GET", "HEAD"]  # is it there, and whole


def test_a_hanging_name_server_costs_the_connect_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()

    def hang(*_: Any, **__: Any) -> list[Any]:
        gone.wait(HANG_SECONDS)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    transport = HttpTransport("http://cache.example", "default", {}, limits=QUICK)
    with pytest.raises(Unreachable, match="no answer in time"):
        transport.fetch(Kind.GRAPH, KEY)
    gone.set()


def test_a_name_that_does_not_resolve_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(Unreachable, match="Name or service not known"):
        HttpTransport("http://cache.example", "default", {}).fetch(Kind.GRAPH, KEY)


def test_a_refusing_and_a_deaf_address_are_not_the_end_while_another_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        transport_to(fixed(hit())) as (_, server),
        socket.create_server(("127.0.0.1", 0), backlog=0) as deaf,
        ExitStack() as full,
    ):
        for _ in range(4):  # until the kernel answers no more: nobody accepts
            waiting = full.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(deaf.getsockname())
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        addresses = [("127.0.0.1", 1), deaf.getsockname(), ("127.0.0.1", server.port)]
        found = [(*stream, address) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        transport = HttpTransport("http://cache.example", "default", {}, limits=Limits(connect=1))
        assert transport.fetch(Kind.GRAPH, KEY) is not None
        assert server.requests[0].headers["host"] == "cache.example"
        transport.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # that is what is tested
def test_a_child_process_does_not_speak_on_its_parents_connection() -> None:
    with transport_to(fixed(hit())) as (transport, server):
        assert transport.fetch(Kind.GRAPH, KEY) is not None
        child = os.fork()
        if child == 0:  # not one line more than needed: this is a copy of pytest
            status = 1
            try:
                status = 0 if transport.fetch(Kind.GRAPH, KEY) is not None else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert transport.fetch(Kind.GRAPH, KEY) is not None
        assert (server.connections, len(server.requests)) == (2, 3)


def test_a_proxy_is_asked_with_the_whole_address() -> None:
    with RawServer(fixed(hit())) as proxy:
        environment = {"http_proxy": f"http://user:pass%20word@127.0.0.1:{proxy.port}"}
        transport = HttpTransport("http://cache.example:8080", "default", environment)
        assert transport.fetch(Kind.GRAPH, KEY) is not None
        transport.close()
        assert proxy.requests[0].target == f"http://cache.example:8080/v1/default/graph/artifacts/{KEY}"
        assert proxy.requests[0].headers["host"] == "cache.example:8080"
        assert proxy.requests[0].headers["proxy-authorization"].startswith("Basic ")


def test_a_proxy_that_opens_no_tunnel_is_named() -> None:
    with RawServer(fixed(answer(403))) as proxy:
        environment = {"https_proxy": f"127.0.0.1:{proxy.port}", "NEURON_CACHE_TOKEN": SECRET}
        transport = HttpTransport("https://cache.example", "default", environment)
        with pytest.raises(Unreachable, match="opened no tunnel"):
            transport.fetch(Kind.GRAPH, KEY)
        assert proxy.requests[0].target == "cache.example:443"
        assert SECRET not in str(proxy.requests)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("cache:8080", "did you mean http://cache:8080"),
        ("cache.example/base", "did you mean http://cache.example/base"),
        ("some folder", r"did you mean \./some folder"),
        ("gs://bucket/prefix", "is not known here"),
        ("http://user:pass@cache/", "holds a user or password"),
        ("http://user:pass/word@cache/", "no URL"),
        ("user:pass@cache:8080", "did you mean http://cache:8080"),
        ("http://user:pass#word@cache/", "no URL"),
        ("http://cache/?a=b", "goes on after its path"),
        ("http://", "names no host"),
        ("http://cache:port", "no URL"),
        ("file://server/share", "names no folder"),
    ],
)
def test_an_address_that_cannot_be_followed_says_what_would_work(url: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected) as caught:
        open_transport(url, "default", {})
    assert "pass" not in str(caught.value).replace("password", "")


def test_a_waiting_poll_has_its_own_deadline() -> None:
    waited = b'{"state": "wait", "generation": 3, "holder": {"host": "h", "pid": 1}, "since": "", "expires_in": 9}'

    def slow(request: Received, sock: socket.socket) -> bytes:
        time.sleep(0.5)
        return answer(200, waited)

    with transport_to(slow, QUICK) as (transport, server):
        with pytest.raises(Unreachable):
            transport.acquire(Kind.GRAPH, KEY, HOLDER)
        assert isinstance(transport.acquire(Kind.GRAPH, KEY, HOLDER, wait_seconds=5, seen_generation=3), Wait)
        assert json.loads(server.requests[-1].body)["seen_generation"] == 3


# what a server cannot take just now

YEAR = "31536000"


class Overloaded:
    """A server that refuses the first ``times`` of each write with ``status``, and asks to come back in a year."""

    def __init__(self, status: int, times: int = 1) -> None:
        self._status = status
        self._times = times
        self.seen: Counter[tuple[str, str]] = Counter()

    def __call__(self, request: Received, sock: socket.socket) -> bytes:
        if request.method == "GET":
            return problem(404, "not_found")
        call = request.method, request.target
        self.seen[call] += 1
        if self.seen[call] <= self._times:
            return answer(self._status, b"{}", Content_Type="application/problem+json", Retry_After=YEAR)
        return rightly({})(request, sock)


WRITES: dict[str, Callable[[HttpTransport], object]] = {
    "publish": lambda transport: transport.publish(ENTRY, {"model.neff": NEFF}, LEASE),
    "acquire": lambda transport: transport.acquire(Kind.GRAPH, KEY, HOLDER),
    "release": lambda transport: transport.release(Kind.GRAPH, KEY, LEASE),
    "report": lambda transport: transport.report({}),
    "renew": lambda transport: transport.renew(Kind.GRAPH, KEY, LEASE),
}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.share(6)
def test_one_no_of_a_busy_server_loses_no_write_and_its_year_of_patience_is_not_kept(write: str, status: int) -> None:
    clock = PassedTime()
    busy = Overloaded(status)
    with RawServer(busy) as server:
        transport = HttpTransport(
            server.url, "default", {}, limits=Limits(retry=60.0), monotonic=lambda: clock.now, sleep=clock.sleep
        )
        WRITES[write](transport)
        transport.close()
    assert set(busy.seen.values()) == {2}
    assert clock.slept
    assert max(clock.slept) <= 1.0


def test_a_server_that_stays_busy_costs_a_write_no_more_than_a_part_of_the_callers_patience() -> None:
    busy = Overloaded(503, times=1000)
    clock = PassedTime()
    with RawServer(busy) as server:
        transport = HttpTransport(server.url, "default", {}, monotonic=lambda: clock.now, sleep=clock.sleep)
        with patient(Patience(quiet=1.0)), pytest.raises(Unreachable, match="503"):
            transport.release(Kind.GRAPH, KEY, LEASE)
        transport.close()
    assert sum(clock.slept) <= 0.4


@pytest.mark.parametrize("status", [400, 409, 413, 422, 500, 507])
def test_a_no_that_will_stay_one_is_not_asked_again(status: int) -> None:
    busy = Overloaded(status, times=1000)
    with transport_to(busy) as (transport, _), pytest.raises(TransportError):
        transport.acquire(Kind.GRAPH, KEY, HOLDER)
    assert list(busy.seen.values()) == [1]


def test_what_a_job_compiled_last_is_uploaded_at_its_exit_although_each_write_was_refused_once(tmp_path: Path) -> None:
    busy = Overloaded(503)
    with RawServer(busy) as server:
        settings = Settings(url=server.url, node_dir=tmp_path / "node")
        cache = Cache(settings, open_transport=lambda: HttpTransport(server.url, "default", {}), upload_grace=0.0)
        cache.get_or_compile(DOCUMENT, lambda: Compiled({"model.neff": NEFF}, 1.0))
        cache.close()
    assert busy.seen["PUT", f"/v1/default/graph/entries/{KEY}"] == 2


# where a redirect may lead

ELSEWHERE = (
    "http://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fe80::1]/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://10.0.0.1/",
    "http://bucket.s3.amazonaws.com/object",
    "https://s3.amazonaws.com.example.com/object",
    "https://evil-s3.example.com/bucket.s3.amazonaws.com",
    "https://elsewhere.example.com/object",
)


@pytest.mark.parametrize("location", ELSEWHERE)
def test_a_server_leads_a_job_to_no_host_that_nothing_names_and_sends_the_program_itself(
    location: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[str, int]] = []

    def look_up(host: str, port: int, **more: Any) -> Any:
        asked.append((host, port))
        return real(host, port, **more)

    def leading_away(request: Received, sock: socket.socket) -> bytes:
        # as every cache server does that redirects: never what is asked for under a condition
        return hit() if "if-none-match" in request.headers else answer(307, Location=location, Neff_Entry=HEADER)

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with transport_to(leading_away) as (transport, server):
        for _ in range(2):
            found = transport.fetch(Kind.GRAPH, KEY)
            assert found is not None
            assert found.neff == NEFF
        assert len(server.requests) == 3
    assert {host for host, _ in asked} == {"127.0.0.1"}
    (warning,) = caplog.messages
    assert "NEURON_CACHE_REDIRECT_HOSTS" in warning


def test_a_server_that_leads_away_whatever_it_is_asked_is_a_miss_with_the_setting_named() -> None:
    with transport_to(fixed(answer(307, Location="http://169.254.169.254/"))) as (transport, server):
        for _ in range(2):
            with pytest.raises(Unreachable, match="NEURON_CACHE_REDIRECT_HOSTS"):
                transport.fetch(Kind.GRAPH, KEY)
        assert len(server.requests) == 3


def test_a_redirect_to_a_host_that_the_setting_names_is_followed_and_nowhere_else() -> None:
    target = Origin("https", "files.example.com", 443)
    for word, followed in (
        ("files.example.com", True),
        (".example.com", True),
        ("https://files.example.com", True),
        ("example.com", False),
        ("http://files.example.com", False),
        ("", False),
    ):
        redirects = Redirects(Origin("https", "cache.example.org", 443), {SETTING: f"minio, {word}"})
        assert (redirects.route(target) is not None) is followed, word
        assert redirects.route(Origin("http", "files.example.com", 443)) is None


@pytest.mark.parametrize("word", ["minio:9000", "ftp://minio", "http://", "a b", "*.example.com", "-,/"])
def test_a_setting_that_names_no_hosts_is_said(word: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{SETTING}.*such as"):
        HttpTransport("http://cache.example.org", "default", {SETTING: word})


@pytest.mark.parametrize(
    "host",
    [
        "bucket.s3.eu-west-1.amazonaws.com",
        "s3.amazonaws.com",
        "b.s3-accelerate.amazonaws.com",
        "b.vpce-0a1b.s3.us-east-1.vpce.amazonaws.com",
        "b--x.s3express-use1-az4.us-east-1.amazonaws.com",
        "b.s3.cn-north-1.amazonaws.com.cn",
    ],
)
def test_a_redirect_to_s3_is_followed_over_tls_only(host: str) -> None:
    redirects = Redirects(Origin("http", "cache.example.org", 80), {})
    assert redirects.route(Origin("https", host, 443)) is not None
    assert redirects.route(Origin("http", host, 80)) is None


def test_a_name_that_stands_for_this_machine_is_not_connected_to() -> None:
    redirects = Redirects(Origin("https", "cache.example.org", 443), {SETTING: "files.example.com"})
    route = redirects.route(Origin("https", "files.example.com", 443))
    assert route is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for address in ("127.0.0.1", "::ffff:127.0.0.1", "169.254.169.254"):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            found = [(family, socket.SOCK_STREAM, 0, "", (address, listener.getsockname()[1]))]
            with pytest.raises(Unreachable, match="this machine alone"):
                dial(route, 1.0, lookup=lambda host, port, found=found: found)  # type: ignore[misc] # bound by loop
        listener.setblocking(False)  # noqa: FBT003 - its signature
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [
        ("52.216.1.1", True),
        ("10.0.0.1", True),
        ("2600:1fa0::1", True),
        ("fd12::1", True),
        ("127.1.2.3", False),
        ("::1", False),
        ("::", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:a9fe:a9fe::1", False),
        ("::169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("100.100.100.200", False),
        ("168.63.129.16", False),
        ("224.0.0.1", False),
    ],
)
def test_every_way_to_write_this_machine_and_its_metadata_is_known(address: str, elsewhere: bool) -> None:
    assert is_elsewhere(address) is elsewhere
