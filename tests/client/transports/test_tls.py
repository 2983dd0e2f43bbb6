"""HTTPS with a private authority, client certificates and a proxy's tunnel, against real TLS servers."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError, Unreachable
from client.names import Kind
from client.transports.http import HttpTransport
from tests.client.programs import build, document, entry_of
from tests.client.transports.raw_server import RawServer, answer
from tests.fakes.waiting import HANG_SECONDS
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCUMENT = document()
NEFF = build()
ENTRY = entry_of(DOCUMENT, {"model.neff": NEFF})
HIT = answer(200, NEFF, Neff_Entry=ENTRY.to_header() or "")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def tls_server(
    authority: Authority, name: str = "localhost", *, days: int = 1, mutual: bool = False
) -> Iterator[RawServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own = authority.sign(name, hosts=(name,), days=days)
    context.load_cert_chain(own.certificate, own.key)
    if mutual:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    server = RawServer(lambda request, sock: HIT, wrap=lambda sock: context.wrap_socket(sock, server_side=True))
    with server:
        server.url = f"https://localhost:{server.port}/team/cache"
        yield server


def fetch(server: RawServer, **environment: object) -> bytes | None:
    transport = HttpTransport(server.url, "default", {name: str(value) for name, value in environment.items()})
    try:
        found = transport.fetch(Kind.GRAPH, DOCUMENT.key)
        assert transport.fetch(Kind.GRAPH, DOCUMENT.key) is not None
        return None if found is None else found.neff
    finally:
        transport.close()


def test_a_private_authority_a_path_and_kept_connections_work(authority: Authority) -> None:
    with tls_server(authority) as server:
        assert fetch(server, NEURON_CACHE_CA_FILE=authority.file) == NEFF
        assert (server.connections, len(server.requests)) == (1, 2)
        assert server.requests[0].target.startswith("/team/cache/v1/")


def test_an_unknown_authority_is_refused_and_the_setting_named(authority: Authority) -> None:
    with tls_server(authority) as server, pytest.raises(Unreachable, match="NEURON_CACHE_CA_FILE"):
        fetch(server)


def test_a_certificate_for_another_name_is_refused(authority: Authority) -> None:
    with (
        tls_server(authority, "another.example") as server,
        pytest.raises(Unreachable, match="ostname mismatch") as caught,
    ):
        fetch(server, NEURON_CACHE_CA_FILE=authority.file)
    assert "NEURON_CACHE_CA_FILE" not in str(caught.value)  # that would not help


def test_a_certificate_that_ran_out_is_refused(authority: Authority) -> None:
    with tls_server(authority, days=-1) as server, pytest.raises(Unreachable, match="expired"):
        fetch(server, NEURON_CACHE_CA_FILE=authority.file)


def test_a_client_certificate_is_shown_where_it_is_asked_for(authority: Authority, tmp_path: Path) -> None:
    job = authority.sign("job")
    both = tmp_path / "both.pem"
    both.write_bytes(job.certificate.read_bytes() + job.key.read_bytes())
    with tls_server(authority, mutual=True) as server:
        environment = {"NEURON_CACHE_CA_FILE": authority.file}
        with pytest.raises(Unreachable, match="wants? a client certificate.*NEURON_CACHE_CLIENT_CERT"):
            fetch(server, **environment)
        assert fetch(server, **environment, NEURON_CACHE_CLIENT_CERT=both) == NEFF
        pair = {"NEURON_CACHE_CLIENT_CERT": job.certificate, "NEURON_CACHE_CLIENT_KEY": job.key}
        assert fetch(server, **environment, **pair) == NEFF


@pytest.mark.parametrize("fault", ["expired", "stranger"])
def test_a_client_certificate_that_is_refused_is_what_the_error_is_about(
    authority: Authority, tmp_path: Path, fault: str
) -> None:
    signer = authority if fault == "expired" else Authority(tmp_path, "stranger")
    job = signer.sign("job", days=-1 if fault == "expired" else 1, file=fault)
    with tls_server(authority, mutual=True) as server, pytest.raises(Unreachable, match="client certificate") as caught:
        fetch(
            server,
            NEURON_CACHE_CA_FILE=authority.file,
            NEURON_CACHE_CLIENT_CERT=job.certificate,
            NEURON_CACHE_CLIENT_KEY=job.key,
        )
    assert "NEURON_CACHE_CLIENT_CERT" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_certificate_that_is_renewed_counts_from_the_next_connection_on(authority: Authority) -> None:
    job = authority.sign("renewed")
    shown: list[str] = []
    with tls_server(authority, mutual=True) as server:

        def remember(request: object, sock: socket.socket) -> bytes:
            assert isinstance(sock, ssl.SSLSocket)
            shown.append(str((sock.getpeercert() or {})["serialNumber"]))
            return HIT

        server.script = remember
        environment = {
            "NEURON_CACHE_CA_FILE": str(authority.file),
            "NEURON_CACHE_CLIENT_CERT": str(job.certificate),
            "NEURON_CACHE_CLIENT_KEY": str(job.key),
        }
        transport = HttpTransport(server.url, "default", environment)
        for renewal in (lambda: None, lambda: job.key.write_bytes(b"half a pair"), lambda: authority.sign("renewed")):
            renewal()
            transport.close()
            assert transport.fetch(Kind.GRAPH, DOCUMENT.key) is not None
        transport.close()
    assert shown[0] == shown[1] != shown[2]


def test_a_locked_key_is_refused_without_asking_at_the_terminal(authority: Authority) -> None:
    locked = authority.sign("locked", password=b"secret")
    environment = {"NEURON_CACHE_CLIENT_CERT": str(locked.certificate), "NEURON_CACHE_CLIENT_KEY": str(locked.key)}
    with pytest.raises(ConfigurationError, match="not encrypted"):
        HttpTransport("https://localhost", "default", environment)


def test_a_key_without_its_certificate_is_a_mistake_that_is_said(authority: Authority) -> None:
    with pytest.raises(ConfigurationError, match="set NEURON_CACHE_CLIENT_CERT, too"):
        HttpTransport("https://localhost", "default", {"NEURON_CACHE_CLIENT_KEY": str(authority.sign("alone").key)})


@pytest.mark.parametrize("name", ["NEURON_CACHE_CA_FILE", "NEURON_CACHE_CLIENT_CERT"])
def test_a_file_that_is_no_certificate_is_refused_by_its_setting(tmp_path: Path, name: str) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for path in (wrong, tmp_path / "absent.pem"):
        with pytest.raises(ConfigurationError, match=name):
            HttpTransport("https://localhost", "default", {name: str(path)})


def test_a_server_without_tls_is_unreachable() -> None:
    with RawServer(lambda request, sock: HIT) as server:
        server.url = f"https://localhost:{server.port}"
        with pytest.raises(Unreachable, match="(does|may) .*not speak TLS"):
            fetch(server)


def test_a_redirect_never_leaves_tls(authority: Authority) -> None:
    with RawServer(lambda request, sock: HIT) as plain, tls_server(authority) as server:
        server.script = lambda request, sock: answer(307, Location=plain.url)
        with pytest.raises(Unreachable, match="not encrypted"):
            fetch(server, NEURON_CACHE_CA_FILE=authority.file)
        assert not plain.requests


def test_a_tunnel_through_a_proxy_is_encrypted_to_the_server(authority: Authority) -> None:
    with tls_server(authority, "cache.example") as server:

        def tunnel(request: object, sock: socket.socket) -> None:
            sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with socket.create_connection(("127.0.0.1", server.port)) as onward:
                back = threading.Thread(target=relay, args=(onward, sock), daemon=True)
                back.start()
                relay(sock, onward)
                back.join(HANG_SECONDS)

        with RawServer(tunnel) as proxy:
            server.url = f"https://cache.example:{server.port}"
            environment = {
                "NEURON_CACHE_CA_FILE": authority.file,
                "https_proxy": proxy.url,
                "NEURON_CACHE_TOKEN": "t0k",
            }
            assert fetch(server, **environment) == NEFF
            assert [request.method for request in proxy.requests] == ["CONNECT"]
            assert "authorization" not in proxy.requests[0].headers
            assert server.requests[0].headers["authorization"] == "Bearer t0k"


def relay(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
