"""HTTPS with a private authority, client certificates and a proxy's tunnel, against real TLS servers."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError, Unreachable
from client.names import Kind
from client.transports.http import HttpTransport
from tests.client.programs import build, document, entry_of
from tests.client.transports.raw_server import RawServer, answer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")

DOCUMENT = document()
NEFF = build()
ENTRY = entry_of(DOCUMENT, {"model.neff": NEFF})
HIT = answer(200, NEFF, Neff_Entry=ENTRY.to_header() or "")


class Authority:
    """A private certificate authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ca.pem"
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # what strict verification asks for
        self._openssl(
            "req", "-x509", "-subj", "/CN=private", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", *usage
        )

    def certificate(self, name: str, *options: str, days: int = 1) -> Path:
        """Make a certificate for ``name``; return one file that holds it and its key."""
        self._openssl("req", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr", *options)
        names = self.folder / "names"
        names.write_text(f"subjectAltName=DNS:{name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", str(names), "-days", str(days))
        self._run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed)
        both = self.folder / f"{name}.pem"
        both.write_text("".join((self.folder / f"{name}.{part}").read_text() for part in ("crt", "key")))
        return both

    def _openssl(self, *arguments: str) -> None:
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        unencrypted = () if "-passout" in arguments else ("-nodes",)
        self._run(arguments[0], *new_key, *unencrypted, *arguments[1:])

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True, timeout=30)  # noqa: S607 - whichever is there


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def tls_server(
    authority: Authority, name: str = "localhost", *, days: int = 1, mutual: bool = False
) -> Iterator[RawServer]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.certificate(name, days=days))
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
    with tls_server(authority, "another.example") as server, pytest.raises(Unreachable, match="ostname mismatch"):
        fetch(server, NEURON_CACHE_CA_FILE=authority.file)


def test_a_certificate_that_ran_out_is_refused(authority: Authority) -> None:
    with tls_server(authority, days=-1) as server, pytest.raises(Unreachable, match="expired"):
        fetch(server, NEURON_CACHE_CA_FILE=authority.file)


def test_a_client_certificate_is_shown_where_it_is_asked_for(authority: Authority) -> None:
    certificate = authority.certificate("job")
    with tls_server(authority, mutual=True) as server:
        environment = {"NEURON_CACHE_CA_FILE": authority.file}
        with pytest.raises(Unreachable):
            fetch(server, **environment)
        assert fetch(server, **environment, NEURON_CACHE_CLIENT_CERT=certificate) == NEFF


def test_a_locked_key_is_refused_without_asking_at_the_terminal(authority: Authority) -> None:
    certificate = authority.certificate("locked", "-passout", "pass:secret")
    with pytest.raises(ConfigurationError, match="not encrypted"):
        HttpTransport("https://localhost", "default", {"NEURON_CACHE_CLIENT_CERT": str(certificate)})


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
        with pytest.raises(Unreachable):
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
                back.join(10)

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
