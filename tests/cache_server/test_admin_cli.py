"""The operator's commands against a running server."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from cache_server.admin_cli import admin_app
from client.errors import ConfigurationError, Denied, WireError
from client.names import Kind
from client.transports.http import HttpTransport
from tests.cache_server.growth import made
from tests.fakes.waiting import HANG_SECONDS
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cache_server.harness import Built
    from tests.support.servers import Server

app = typer.Typer()
app.add_typer(admin_app, name="admin")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {"NEFF_CACHE_COLLECT_GRACE_SECONDS": "0", "NEFF_CACHE_USAGE_SECONDS": "0.05"}
    with running_server(tmp_path_factory.mktemp("admin"), environment=environment) as server:
        yield server


@pytest.fixture(autouse=True)
def _environment(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(running.config))
    monkeypatch.setenv("NEURON_CACHE_URL", running.url)


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    return request.node.name.replace("_", "-")[:40].rstrip("-")


def run(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def said(*words: str, status: int = 0) -> Any:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def publish(running: Server, project: str, *entries: Built) -> None:
    environ = {**os.environ, "XDG_CONFIG_HOME": str(running.config)}
    with closing(HttpTransport(running.url, project, environ)) as transport:
        for built in entries:
            assert transport.publish(built.entry, built.stored, None).created


def test_a_quota_is_set_shown_and_taken_back(project: str) -> None:
    assert said("admin", "quota", "--project", project, "--max-bytes", "2KiB")[project] == {
        "max_bytes": 2048,
        "max_entries": None,
    }
    assert f"{project}\t2.0 KiB" in run("admin", "quota")
    assert project not in said("admin", "quota", "--project", project, "--none")
    assert said("admin", "quota", "--server", "--max-entries", "1000000")["server"]["max_entries"] == 1_000_000
    assert "server" not in said("admin", "quota", "--server", "--none")


def test_rules_are_set_shown_and_taken_back(project: str) -> None:
    words = ("--unused", "60d", "--keep-versions", "2", "--oldest", "neuronx-cc=2.20")
    assert said("admin", "rules", "--project", project, *words)[project] == {
        "unused_seconds": 60 * 86400.0,
        "keep_versions": 2,
        "oldest": {"neuronx-cc": "2.20"},
    }
    assert "keeps: neuronx-cc 2.20 and newer, newest 2 releases, used within 1440.0 h" in run("admin", "rules")
    assert project not in said("admin", "rules", "--project", project, "--none")
    said("admin", "rules", "--server", "--keep-versions", "9")
    assert "server" not in said("admin", "rules", "--server", "--none")


@pytest.mark.parametrize(
    "words",
    [
        ("quota", "--max-bytes", "1"),
        ("quota", "--max-bytes", "much", "--server"),
        ("quota", "--max-entries", "1", "--server", "--project", "a"),
        ("rules", "--server", "--oldest", "2.20"),
        ("rules", "--server", "--unused", "long"),
        ("pin", "plans:a"),
        ("pin", "graph/abc"),
        ("pin", "label:"),
    ],
)
def test_words_that_mean_nothing_are_refused_in_one_sentence(words: tuple[str, ...]) -> None:
    with pytest.raises((ConfigurationError, WireError)) as caught:
        run("admin", *words)
    assert "expected" in str(caught.value) or "say whom" in str(caught.value)


def test_a_dry_run_then_a_collection(running: Server, project: str) -> None:
    cheap, dear, pinned = (made(name, project=project, seconds=s) for name, s in (("a", 1), ("b", 9), ("c", 0.1)))
    publish(running, project, cheap, dear, pinned)
    assert "is pinned" in run("admin", "pin", f"graph/{pinned.entry.key}", "--project", project)
    run("admin", "quota", "--project", project, "--max-entries", "2")

    said_first = said("admin", "collection", "run", "--dry-run", "--project", project)
    assert [line["key"] for line in said_first["listed"]] == [cheap.entry.key]
    assert f"{project}\tgraph/{cheap.entry.key}\tquota\t100 B\t1.0 s" in run(
        "admin", "collection", "run", "--dry-run", "--project", project
    )
    assert "collected 1 entries, 100 B" in run("admin", "collection", "run", "--project", project)
    assert said("admin", "collection", "run", "--project", project)["entries"] == 0

    stats = said("admin", "stats")["projects"][project]
    assert (stats["kinds"]["graph"]["entries"], stats["pins"]) == (2, 1)
    assert f"{project}\tgraph\t2\t200 B" in run("admin", "stats")


def test_pins_are_listed_and_removed(running: Server, project: str) -> None:
    built = made("a", project=project)
    publish(running, project, built)
    line = json.dumps({"kind": "graph", "key": built.entry.key})
    request = urllib.request.Request(
        f"{running.url}/v1/{project}/plans/serve",
        data=line.encode(),
        method="PUT",
        headers={"Authorization": f"Bearer {running.token}"},
    )
    urllib.request.urlopen(request, timeout=HANG_SECONDS).close()
    for target in (f"graph/{built.entry.key}", "label:llama/70b x", "plan:serve"):
        assert said("admin", "pin", target, "--project", project) == {"created": True}
        assert "was pinned already" in run("admin", "pin", target, "--project", project)
        assert target in run("admin", "pins", "--project", project)
    assert len(said("admin", "pins", "--project", project)) == 3
    for target in (f"graph/{built.entry.key}", "label:llama/70b x", "plan:serve"):
        assert said("admin", "unpin", target, "--project", project) == {"removed": True}
        assert "was not pinned" in run("admin", "unpin", target, "--project", project, status=1)
    with pytest.raises(Denied):
        run("admin", "pin", f"{Kind.GRAPH}/{'0' * 64}", "--project", project)


def test_collection_is_paused_and_goes_on() -> None:
    run("admin", "collection", "pause", "a look at the store")
    assert "a look at the store" in run("admin", "collection", "status", status=1)
    assert said("admin", "collection", "run", status=1)["state"] == "paused"
    assert "paused" in run("admin", "collection", "run", status=1)
    run("admin", "collection", "resume")
    assert said("admin", "collection", "status") == {"paused": None}


def test_a_hit_shows_in_the_figures_soon_after(running: Server, project: str) -> None:
    built = made("a", project=project)
    publish(running, project, built)
    with closing(HttpTransport(running.url, project, dict(os.environ))) as transport:
        assert transport.fetch(Kind.GRAPH, built.entry.key) is not None
    for _ in range(200):
        if said("admin", "stats")["projects"][project]["kinds"]["graph"]["hits"]:
            return
        time.sleep(0.05)
    pytest.fail("the use was never written")


def test_a_shared_folder_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CACHE_URL", "file:///somewhere")
    with pytest.raises(ConfigurationError, match="no cache server"):
        run("admin", "collection", "run")
