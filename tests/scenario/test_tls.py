"""The real server behind TLS: jobs with a private authority and client certificates, certificates that are renewed.

``pytest -s`` prints what a job was told of each fault of its TLS set-up.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from client.artifact import Compiled
from client.cache import Cache
from tests.client.programs import build, document
from tests.client.transports.raw_server import RawServer
from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.certificates import Authority
from tests.support.servers import Server, running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

RULES = """
[[certificate.rule]]
when = { uri = "spiffe://cluster/ns/*" }
scopes = ["read", "write", "lease"]
project = "{subject.O}"

[[certificate.rule]]
when = { "subject.CN" = ["prometheus"] }
scopes = ["metrics"]
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls_server(folder: Path, authority: Authority, mode: str = "off") -> AbstractContextManager[Server]:
    """Run a server on a certificate of its own, with a short time for handshakes."""
    pair = authority.sign("server", hosts=("localhost",), file=f"server-{folder.name}")
    rules = folder / "identity.toml"
    rules.write_text(RULES)
    arguments = ["--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)]
    if mode != "off":
        arguments += ["--tls-client-ca", str(authority.file), "--tls-client-mode", mode]
        arguments += ["--identity-file", str(rules)]
    environment = {"NEFF_CACHE_HEAD_SECONDS": "2", "NEFF_CACHE_TLS_RELOAD_SECONDS": "0.2"}
    return running_server(folder, *arguments, environment=environment)


@contextmanager
def tls_listener(authority: Authority, *, hosts: tuple[str, ...] = ("localhost",), days: float = 1) -> Iterator[str]:
    """Give the address of one that has a certificate and no more to say: jobs turn away from it."""
    pair = authority.sign("listener", hosts=hosts, days=days, file=f"listener-{hosts[0]}-{days}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    with RawServer(lambda request, sock: None, wrap=lambda sock: context.wrap_socket(sock, server_side=True)) as raw:
        yield f"https://localhost:{raw.port}"


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    with tls_server(tmp_path_factory.mktemp("mutual"), authority, "optional") as server:
        yield server


def port_of(server: Server) -> int:
    port = urlsplit(server.url).port
    assert port is not None
    return port


def url_of(server: Server) -> str:
    return f"https://localhost:{port_of(server)}"


def connect(server: Server, authority: Authority, pair: Any = None) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=authority.file)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return http.client.HTTPSConnection("localhost", port_of(server), timeout=HANG_SECONDS, context=context)


def status(connection: http.client.HTTPSConnection, path: str, **headers: str) -> int:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def status_once(server: Server, authority: Authority, pair: Any = None) -> int:
    with closing(connect(server, authority, pair)) as connection:
        return status(connection, "/healthz")


def serial_once(server: Server, authority: Authority, pair: Any = None) -> str:
    with closing(connect(server, authority, pair)) as connection:
        return serial(connection)


def serial(connection: http.client.HTTPSConnection) -> str:
    assert status(connection, "/healthz") == 200
    assert isinstance(connection.sock, ssl.SSLSocket)
    return str((connection.sock.getpeercert() or {})["serialNumber"])


def client_environment(server: Server, node: Path, **more: object) -> dict[str, str]:
    config = str(server.config)
    fixed = {"NEURON_CACHE_URL": url_of(server), "NEURON_CACHE_NODE_DIR": str(node), "XDG_CONFIG_HOME": config}
    return {**fixed, **{f"NEURON_CACHE_{name}": str(value) for name, value in more.items()}}


def run_job(environment: dict[str, str], neff: bytes) -> str:
    """Run a job of one program; return where the program came from."""
    with closing(Cache.from_environment(environment, busy=False)) as cache:
        made = cache.get_or_compile(document("tls"), lambda: Compiled({"model.neff": neff}, 600.0))
    assert made.neff
    return made.source


def test_a_job_with_a_private_authority_and_a_client_certificate_needs_no_token(
    mutual: Server, authority: Authority, tmp_path: Path
) -> None:
    job = authority.sign("pod", uris=("spiffe://cluster/ns/ml/sa/trainer",), organization="team-a")
    given = {"CA_FILE": authority.file, "CLIENT_CERT": job.certificate, "CLIENT_KEY": job.key, "PROJECT": "team-a"}
    neff = build(1000)
    sources = []
    for node in ("one", "two"):
        environment = client_environment(mutual, tmp_path / node, **given)
        environment["XDG_CONFIG_HOME"] = str(tmp_path / "nobody")  # the certificate is all there is
        sources.append(run_job(environment, neff))
    assert sources == ["compile", "remote"]
    ran = subprocess.run(
        [sys.executable, "-m", "client.cli", "ls", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert document("tls").key in ran.stdout


def test_certificates_open_what_their_rules_say(mutual: Server, authority: Authority) -> None:
    token = {"Authorization": f"Bearer {mutual.token}"}
    pod = authority.sign("pod", uris=("spiffe://cluster/ns/ml/sa/trainer",), organization="team-a", file="pod-a")
    monitor = authority.sign("prometheus")
    stranger = authority.sign("stranger", organization="team-a")
    table = {
        "no certificate, no token": (None, {}, (401, 401, 401)),
        "no certificate, token": (None, token, (200, 200, 200)),
        "certificate of a pod": (pod, {}, (200, 404, 403)),
        "certificate of a pod, token": (pod, token, (200, 200, 200)),
        "certificate of a pod, wrong token": (pod, {"Authorization": "Bearer x"}, (401, 401, 401)),
        "certificate of the monitor": (monitor, {}, (404, 404, 200)),
        "certificate without a rule": (stranger, {}, (404, 404, 403)),
    }
    print(f"\n{'status':36}team-a  team-b  metrics")  # noqa: T201 - the table, with -s
    for name, (pair, headers, expected) in table.items():
        connection = connect(mutual, authority, pair)
        paths = ("/v1/team-a/revoked", "/v1/team-b/revoked", "/metrics")
        found = tuple(status(connection, path, **headers) for path in paths)
        connection.close()
        print(f"{name:36}{found[0]}     {found[1]}     {found[2]}")  # noqa: T201
        assert found == expected, name


def test_every_fault_of_the_set_up_is_one_sentence_and_the_job_goes_on(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger")
    gone, theirs = authority.sign("gone", days=-1), stranger.sign("theirs")
    ca = {"CA_FILE": authority.file}
    told = {}
    with (
        tls_server(tmp_path, authority, "required") as server,
        tls_listener(authority, days=-1) as expired,
        tls_listener(authority, hosts=("cache.example",)) as elsewhere,
    ):
        required = url_of(server)
        plain = required.replace("https:", "http:")
        cases: dict[str, tuple[str, dict[str, Any], str]] = {
            "unknown authority": (required, {}, "NEURON_CACHE_CA_FILE"),
            "server's certificate ran out": (expired, ca, "expired"),
            "certificate of another host": (elsewhere, ca, "Hostname mismatch"),
            "no client certificate": (required, ca, "NEURON_CACHE_CLIENT_CERT"),
            "client certificate ran out": (
                required, {**ca, "CLIENT_CERT": gone.certificate, "CLIENT_KEY": gone.key}, "NEURON_CACHE_CLIENT_CERT",
            ),
            "client certificate of a stranger": (
                required,
                {**ca, "CLIENT_CERT": theirs.certificate, "CLIENT_KEY": theirs.key},
                "NEURON_CACHE_CLIENT_CERT",
            ),
            "client certificate and another's key": (
                required, {**ca, "CLIENT_CERT": gone.certificate, "CLIENT_KEY": theirs.key}, "NEURON_CACHE_CLIENT_CERT",
            ),
            "http:// to a server that wants TLS": (plain, ca, "https://"),
        }  # fmt: skip
        for number, (name, (url, given, sentence)) in enumerate(cases.items()):
            caplog.clear()
            begin = time.monotonic()
            environment = client_environment(server, tmp_path / f"node-{number}", **{**given, "URL": url})
            assert run_job(environment, build(100)) == "compile"
            seconds = time.monotonic() - begin
            warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            told[name] = (seconds, warnings)
            assert len(warnings) == 1, (name, warnings)
            assert sentence in warnings[0], (name, warnings)
            assert "\n" not in warnings[0]
    for name, (seconds, warnings) in told.items():
        print(f"\n{name} ({seconds:.2f} s)\n    {warnings[0]}")  # noqa: T201 - with -s


def test_renewed_files_count_without_a_restart_and_half_a_renewal_does_not(
    authority: Authority, tmp_path: Path
) -> None:
    trusted, own, key = tmp_path / "clients.pem", tmp_path / "own.crt", tmp_path / "own.key"
    other = Authority(tmp_path / "other", "other")
    theirs, ours = other.sign("theirs"), authority.sign("ours")
    old, new = (authority.sign(name, hosts=("localhost",)) for name in ("old", "new"))
    trusted.write_bytes(authority.file.read_bytes() + other.file.read_bytes())
    own.write_bytes(old.certificate.read_bytes())
    key.write_bytes(old.key.read_bytes())
    arguments = ("--tls-cert", str(own), "--tls-key", str(key), "--tls-client-ca", str(trusted))
    arguments += ("--tls-client-mode", "required")
    environment = {"NEFF_CACHE_TLS_RELOAD_SECONDS": "0.2"}
    with running_server(tmp_path, *arguments, environment=environment) as server, ExitStack() as stack:
        kept = stack.enter_context(closing(connect(server, authority, ours)))
        first = serial(kept)
        assert _is_let_in(server, authority, theirs)

        own.write_bytes(new.certificate.read_bytes())  # the key is still that of the old one
        time.sleep(1.0)
        assert serial_once(server, authority, ours) == first
        key.write_bytes(new.key.read_bytes())
        _until(lambda: serial_once(server, authority, ours) != first)
        assert serial(kept) == first  # nobody is cut off

        trusted.write_bytes(authority.file.read_bytes())
        _until(lambda: not _is_let_in(server, authority, theirs))
        assert _is_let_in(server, authority, ours)


def _until(holds: Callable[[], bool]) -> None:
    wait_until(holds, "what the test waits for")


def _is_let_in(server: Server, authority: Authority, pair: Any) -> bool:
    try:
        return status_once(server, authority, pair) == 200
    except (OSError, http.client.HTTPException):
        return False


def test_peers_that_speak_no_tls_or_stop_in_the_middle_are_let_go(mutual: Server, authority: Authority) -> None:
    for sent in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"", b"\x16\x03\x01\x02\x00\x01\x00", os.urandom(512)):
        with socket.create_connection(("127.0.0.1", port_of(mutual)), timeout=HANG_SECONDS) as sock:
            sock.sendall(sent)
            with suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
    assert status_once(mutual, authority) == 200


def test_old_versions_of_tls_are_refused(mutual: Server, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.file)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", port_of(mutual)), timeout=HANG_SECONDS) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock, server_hostname="localhost")


@pytest.mark.soak
def test_a_stop_wakes_those_who_wait_over_tls(authority: Authority, tmp_path: Path) -> None:
    with tls_server(tmp_path, authority) as server:
        _stop_under_a_waiter(server, authority)


def _stop_under_a_waiter(server: Server, authority: Authority) -> None:
    connection = connect(server, authority)
    token = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    lease = f"/v1/default/graph/leases/{document('tls').key}"
    holder = {"host": "h", "pid": 1}
    connection.request("POST", lease, json.dumps({"holder": holder}), token)
    assert json.load(connection.getresponse())["state"] == "granted"
    found: list[Any] = []

    def wait() -> None:
        waiting = connect(server, authority)
        waiting.request("POST", lease, json.dumps({"holder": holder, "wait_seconds": 25}), token)
        found.append(json.load(waiting.getresponse()))
        waiting.close()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(1.0)
    assert server.stop(signal.SIGTERM) == 0
    thread.join(HANG_SECONDS)
    assert found[0]["state"] == "wait"
    connection.close()


def test_files_that_do_not_fit_stop_the_start_in_one_sentence(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.sign("fits"), authority.sign("other")
    options = ("--port", "0", "--data-dir", str(tmp_path / "data"))
    files = ("--tls-cert", str(pair.certificate), "--tls-key", str(other.key))
    ran = subprocess.run(
        [sys.executable, "-m", "client.cli", "serve", *options, *files],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    assert "another key" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.soak
def test_a_server_that_others_reach_in_clear_text_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "NEFF_CACHE_BOOTSTRAP_TOKEN": "t0k" * 10}
    options = ("--host", "0.0.0.0", "--port", "0", "--allowed-host", "cache", "--data-dir", str(tmp_path / "data"))
    process = subprocess.Popen(
        [sys.executable, "-m", "client.cli", "serve", *options], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        assert "not encrypted here, see --tls-cert" in process.stdout.readline()
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
