"""Tokens and the audit trail from the command line: on a running server, and on its database when there is none."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from cache_server.admin_cli import admin_app
from cache_server.token_cli import token_app
from client.errors import ConfigurationError, Denied, NeffCacheError, Refused
from tests.fakes.waiting import HANG_SECONDS
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server

app = typer.Typer()
app.add_typer(admin_app, name="admin")
app.add_typer(token_app, name="token")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("tokens")) as server:
        yield server


@pytest.fixture(autouse=True)
def _environment(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(running.config))
    monkeypatch.setenv("NEURON_CACHE_URL", running.url)


def invoke(*words: str, status: int = 0) -> Any:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


def run(*words: str) -> str:
    return str(invoke(*words).output)


def said(*words: str) -> Any:
    return json.loads(invoke(*words, "--json").stdout)


def status_of(running: Server, token: str) -> int:
    request = urllib.request.Request(f"{running.url}/v1/-/whoami", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_new_token_alone_is_on_standard_output(running: Server) -> None:
    result = invoke("token", "create", "ci", "--grant", "read,write,lease@team-a", "--expires", "90d")
    token = result.stdout.strip()
    assert token.startswith("nc_")
    assert len(token.split()) == 1
    assert "for 'ci': read,write,lease@team-a/*, until " in result.stderr
    assert token not in result.stderr
    assert status_of(running, token) == 200


def test_a_token_is_made_listed_looked_at_and_revoked(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--grant", "read@team-*", "--grant", "read,foreign@team-a/foreign", "--rate", "50")
    made = said("token", "create", "mirror", *words)
    lines = {line["id"]: line for line in said("token", "list")}
    assert lines[made["id"]]["rate"] == 50
    assert "token" not in lines[made["id"]]
    assert f"{made['id']}\tmirror\tvalid\tread@team-*/* read,foreign@team-a/foreign\t" in run("token", "list")

    with monkeypatch.context() as patch:
        patch.setenv("NEURON_CACHE_TOKEN", made["token"])
        assert said("token", "whoami")["token"] == made["id"]
        shown = run("token", "whoami")
        assert "read,foreign\tteam-a\tforeign" in shown
        assert f"mirror, token {made['id']}" in shown
        with pytest.raises(Denied, match="admin on all projects"):
            run("token", "list")

    assert f"token {made['id']} is revoked" in run("token", "revoke", made["id"])
    assert status_of(running, made["token"]) == 401
    assert said("token", "revoke", made["id"]) == {"revoked": made["id"]}
    assert {line["id"]: line["state"] for line in said("token", "list")}[made["id"]] == "revoked"


@pytest.mark.parametrize(
    ("words", "said_so"),
    [
        (("create", "x", "--grant", "write,foreign"), "own grant"),
        (("create", "x", "--grant", "reed"), "no scope"),
        (("create", "x", "--grant", "read@Team"), "no project or pattern"),
        (("create", "x", "--grant", "metrics@team"), "whole server"),
        (("create", "x", "--grant", "read", "--expires", "soon"), "such as 90d"),
        (("create", "a\nb", "--grant", "read"), "printable"),
        (("revoke", "../x"), "12 hexadecimal"),
        (("revoke", "abc"), "12 hexadecimal"),
        (("revoke", "0" * 12), "no token of that id"),
    ],
)
@pytest.mark.parametrize("where", ["running", "database"])
@pytest.mark.share(3)
def test_what_cannot_be_is_said_in_one_sentence(
    words: tuple[str, ...], said_so: str, where: str, tmp_path: Path
) -> None:
    place = ("token",) if where == "running" else ("admin", "token")
    options = () if where == "running" else ("--data-dir", str(tmp_path / "data"))
    with pytest.raises(NeffCacheError) as caught:
        invoke(*place, *words, *options)
    wanted = said_so if where == "running" else said_so.replace("no token of that id", "no token 000000000000")
    assert wanted in str(caught.value) or wanted in repr(caught.value)
    assert "\n" not in str(caught.value)


def test_the_first_token_is_made_before_the_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    made = said("admin", "token", "create", "root", "--grant", "admin", *data)
    doomed = said("admin", "token", "create", "doomed", "--grant", "read", *data)
    assert said("admin", "token", "revoke", doomed["id"], *data) == {"revoked": doomed["id"]}
    listed = {line["label"]: line["state"] for line in said("admin", "token", "list", *data)}
    assert listed == {"root": "valid", "doomed": "revoked"}
    assert f"{made['id']}\troot\tvalid\tadmin@*/*" in run("admin", "token", "list", *data)
    # an address that others can reach: no token is made up, and this one is enough
    with running_server(tmp_path, "--host", "0.0.0.0", "--allowed-host", "localhost") as server:
        url = server.url.replace("0.0.0.0", "localhost")
        monkeypatch.setenv("NEURON_CACHE_URL", url)
        monkeypatch.setenv("NEURON_CACHE_TOKEN", made["token"])
        assert said("token", "whoami")["name"] == "root"
        with pytest.raises(ConfigurationError, match="another neff-cache server"):
            run("admin", "token", "create", "late", "--grant", "read", *data)


def test_the_trail_tells_who_made_and_revoked_a_token(running: Server) -> None:
    made = said("token", "create", "trail", "--grant", "read")
    run("token", "revoke", made["id"])
    rows = said("admin", "audit", "--action", "token")
    assert [row["action"] for row in rows[:2]] == ["token.revoke", "token.create"]
    assert all(row["detail"]["token"] == made["id"] for row in rows[:2])
    assert all(row["actor"].startswith("user (") for row in rows[:2])
    assert f"token.create\tserver\ttoken={made['id']} label=trail grants=" in run("admin", "audit", "--actor", "user")
    assert len(said("admin", "audit", "--limit", "1")) == 1
    assert said("admin", "audit", "--before", "1") == []
    assert said("admin", "audit", "--project", "nobodys") == []
    with pytest.raises(Refused, match="is no time"):
        run("admin", "audit", "--since", "yesterday")
