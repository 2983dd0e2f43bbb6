"""``neff-cache admin trust`` against a running server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from client.cli.main import app
from client.signing.keys import PrivateKey
from client.signing.trust import TrustedKey
from tests.cache_server.harness import build
from tests.support.http_calls import Caller
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from tests.support.servers import Server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("trust")) as server:
        yield server


def test_an_operator_says_whose_signatures_count(running: Server, tmp_path: Path) -> None:
    environment = {"NEURON_CACHE_URL": running.url, "XDG_CONFIG_HOME": str(running.config), "COLUMNS": "200"}

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["admin", "trust", *words, "--project", "prod"], env=environment)

    key = PrivateKey.generate()
    file = tmp_path / "ci.pub"
    file.write_text(f"{TrustedKey(key.public, 'ci').line}\n")
    plain = build(project="prod")
    assert Caller(running.url, running.token).publish(plain).status == 201
    for words in (("add", str(file), "--for", "staging"), ("require",), ("retire", "ci", "--after", "2027-01-01")):
        done = run(*words)
        assert done.exit_code == 0, done.output
    shown = json.loads(run("show", "--json").stdout)
    assert shown["signatures"] == "required"
    assert [(each["name"], each["projects"], each["not_after"]) for each in shown["keys"]] == [
        ("ci", ["staging"], "2027-01-01T00:00:00Z")
    ]
    checked = run("check")
    assert checked.exit_code == 1
    assert f"graph/{plain.entry.key}" in checked.stdout
    assert run("revoke", key.public.key_id).exit_code == 0
    assert run("optional").exit_code == 0
    assert "revoked" in run("show").stdout
    refused = run("remove", "ci")
    assert refused.exit_code == 1
    assert "stays refused" in refused.output
    unknown = run("revoke", "nobody")
    assert unknown.exit_code == 2
    assert "no key in the list" in unknown.output
