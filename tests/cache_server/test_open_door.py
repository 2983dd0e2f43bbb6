"""Nobody gets in by a token that anybody could guess: nothing, what is short, what stands in an example."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from cache_server.configuration import configure
from cache_server.database.models import TokenRow
from cache_server.service import Service
from cache_server.services.tokens import NewToken, token_hash
from cache_server.settings import Settings
from cache_server.weak_tokens import SHORTEST, VOID, is_weak
from client.errors import ConfigurationError
from client.token import user_token_path
from tests.cache_server.harness import TOKEN, InProcess
from tests.fakes.waiting import HANG_SECONDS
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
_TOKENS = "/admin/v1/tokens"

_NOTHING = {
    "the scheme alone": "Bearer",
    "and a space": "Bearer ",
    "and blanks": "Bearer \t ",
    "in small letters": "bearer ",
    "a tab": "Bearer\t",
    "quotes": 'Bearer ""',
    "empty basic": "Basic Og==",
    "basic alone": "Basic ",
    "no scheme": "",
    "a comma": "Bearer ,",
}


def _stored(server: InProcess, token: str, *, label: str = "bootstrap") -> None:
    """Put a token of all rights into the database, as an earlier version did."""
    with server.service.database.transaction() as session:
        row = TokenRow(token_hash=token_hash(token), label=label, scopes="admin", created=1e9)
        row.project_pattern = row.kind_pattern = "*"
        session.add(row)


@pytest.mark.parametrize("text", ["", "\t\n", "short", "${NEFF_CACHE_BOOTSTRAP_TOKEN}"])
@pytest.mark.parametrize("where", ["bootstrap_token", "bootstrap_token_file", "the user's own token file"])
def test_a_first_token_that_can_be_guessed_stops_the_start(tmp_path: Path, where: str, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    given: dict[str, object] = {"bootstrap_token": text}
    if where == "bootstrap_token_file":
        given = {"bootstrap_token_file": file}
    elif where != "bootstrap_token":
        given = {}
        path = user_token_path({"XDG_CONFIG_HOME": str(tmp_path / "config")})
        path.parent.mkdir(parents=True)
        file.rename(path)
    with pytest.raises(ConfigurationError, match=r"token") as raised:
        Service.open(Settings(data_dir=tmp_path / "data", **given))
    assert "\n" not in str(raised.value)
    assert not text.strip() or text.strip() not in str(raised.value)


def test_an_unset_secret_of_a_compose_file_is_no_token_and_hides_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("f" * 40)
    environ = {"NEFF_CACHE_BOOTSTRAP_TOKEN": "", "NEFF_CACHE_BOOTSTRAP_TOKEN_FILE": str(file)}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert configure({}, environ).settings.first_token() == "f" * 40
    # and with neither, nobody who can be reached from elsewhere starts
    monkeypatch.delenv("NEFF_CACHE_BOOTSTRAP_TOKEN_FILE")
    settings = configure({"host": "10.0.0.1", "data_dir": tmp_path / "d"}, {"NEFF_CACHE_BOOTSTRAP_TOKEN": ""}).settings
    with pytest.raises(ConfigurationError, match="there is no token yet"):
        Service.open(settings)


def test_nothing_in_place_of_a_token_is_401_whatever_the_database_holds(
    make_server: Callable[..., InProcess],
) -> None:
    server = make_server()
    for token in ("", " ", "\t", ",", '""'):
        _stored(server, token)
    for how, value in _NOTHING.items():
        assert server.call("GET", _TOKENS, token=None, headers={"Authorization": value}).status_code == 401, how
    assert server.call("GET", f"{_TOKENS}?token=", token=None).status_code == 401
    assert server.call("GET", f"{_TOKENS}?access_token={TOKEN}", token=None).status_code == 401


def test_a_token_that_can_be_guessed_is_401_whatever_the_database_holds(
    make_server: Callable[..., InProcess],
) -> None:
    server = make_server()
    for token in ("changeme", "secret", "a long random text", "s3cr3t-of-ours"):
        _stored(server, token)
        assert server.call("GET", _TOKENS, token=token).status_code == 401, token


def test_an_open_door_of_an_earlier_version_is_shut_at_the_start_and_told_loudly(
    make_server: Callable[..., InProcess],
) -> None:
    server = make_server()
    _stored(server, "")
    _stored(server, "changeme", label="first")
    states = sorted((row["label"], row["state"]) for row in server.call("GET", _TOKENS).json()["tokens"])
    assert states == [("bootstrap", "valid"), ("bootstrap", "void"), ("first", "void"), ("user", "valid")]
    with structlog.testing.capture_logs() as said:
        server.service.tokens.shut_open_doors()
    loud = [line for line in said if line["log_level"] == "error"]
    assert {line["token"] for line in loud} == {token_hash("")[:12], token_hash("changeme")[:12]}
    assert all(line["since"] == "2001-09-09T01:46:40Z" for line in loud)
    rows = {row["id"]: row for row in server.call("GET", _TOKENS).json()["tokens"]}
    for line in loud:
        assert rows[line["token"]]["state"] == "void"
        assert rows[line["token"]]["revoked"] is not None
    actions = server.call("GET", "/admin/v1/audit?action=token.revoke").json()
    assert {line["token"] for line in loud} == {row["detail"]["token"] for row in actions["rows"]}
    # once is enough, and a revoked one stays so
    with structlog.testing.capture_logs() as said:
        server.service.tokens.shut_open_doors()
    assert not said


def test_a_void_token_is_no_token_for_the_first_start(make_server: Callable[..., InProcess]) -> None:
    server = make_server(bootstrap_token=None, host="127.0.0.1")
    with server.service.database.transaction() as session:
        for row in session.query(TokenRow):
            session.delete(row)
    _stored(server, "")
    assert not server.service.tokens.any_usable()


def test_no_token_that_is_made_here_is_weak(make_server: Callable[..., InProcess]) -> None:
    tokens = make_server().service.tokens
    from cache_server.access import SERVER, Grant, Scope  # noqa: PLC0415

    wanted = NewToken("x", (Grant(frozenset({Scope.READ})),))
    made = [tokens.create(wanted, by=SERVER)[0] for _ in range(20)]
    assert not any(map(is_weak, made))
    assert all(len(token) > 2 * SHORTEST for token in made)


def test_what_our_own_files_say_in_place_of_a_token_opens_nothing() -> None:
    named = [ROOT / "docker-compose.yml", ROOT / "docs" / "server.toml", *(ROOT / "deploy").rglob("*.*")]
    given = set()
    for path in named:
        for line in path.read_text().splitlines():
            name, separator, value = line.strip().lstrip("#- ").partition("=" if "=" in line else ":")
            if separator and name.strip().upper().endswith("BOOTSTRAP_TOKEN"):
                given |= {value.strip(), value.strip().strip('"'), value.partition(":?")[2].rstrip("}")}
    assert given - {""}
    for value in given - {""}:
        assert is_weak(value) or value.startswith(("$(openssl rand", "${NEFF_CACHE_BOOTSTRAP_TOKEN:?")), value


def test_the_empty_token_is_among_the_void() -> None:
    assert hashlib.sha256(b"").hexdigest() in VOID


def test_a_server_whose_secret_is_set_and_empty_lets_nobody_in(tmp_path: Path) -> None:
    environment = {"NEFF_CACHE_BOOTSTRAP_TOKEN": "", "NEFF_CACHE_STORE": "", "NEFF_CACHE_DATABASE": " "}
    with running_server(tmp_path, environment=environment) as server:
        status = subprocess.run(
            [sys.executable, "-c", _ASK, server.url + _TOKENS],
            capture_output=True,
            text=True,
            check=True,
            timeout=HANG_SECONDS,
        )
        assert status.stdout.split() == ["401", "401"]
    assert (tmp_path / "data" / "store").is_dir()
    refused = subprocess.run(
        [sys.executable, "-m", "client.cli", "serve", "--host", "0.0.0.0", "--allowed-host", "x", "--port", "0"],
        env={"PATH": "/usr/bin", "HOME": str(tmp_path), "NEFF_CACHE_BOOTSTRAP_TOKEN": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert refused.returncode == 1
    assert "there is no token yet" in refused.stderr


_ASK = """
import socket, sys
from urllib.parse import urlsplit
at = urlsplit(sys.argv[1])
for value in (b"Bearer", b"Bearer "):
    with socket.create_connection((at.hostname, at.port), 10) as s:
        s.sendall(b"GET %s HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\nAuthorization: %s\\r\\n\\r\\n"
                  % (at.path.encode(), value))
        print(s.makefile("rb").readline().split()[1].decode())
"""
