from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from client.cli.main import app
from client.node.tier import NodeTier
from client.transports import open_transport
from tests.client.programs import compiled, entry_of
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from client.artifact import Compiled
    from client.key import KeyDocument
    from client.wire import Entry
    from tests.support.servers import Server


@dataclass
class Ran:
    """What a command did."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass
class CommandLine:
    """The command line as a user of one machine has it: a node tier and, where ``url`` is set, a shared cache."""

    folder: Path
    url: str | None
    config: Path
    project: str = "default"

    @property
    def environment(self) -> dict[str, str | None]:
        return {
            "NEURON_CACHE_NODE_DIR": str(self.node_dir),
            "NEURON_CACHE_URL": self.url,
            "NEURON_CACHE_PROJECT": self.project,
            "XDG_CONFIG_HOME": str(self.config),
            "COLUMNS": "200",
        }

    @property
    def node_dir(self) -> Path:
        return self.folder / "node"

    @property
    def tier(self) -> NodeTier:
        return NodeTier(self.node_dir, self.project)

    def run(self, *words: str, environment: dict[str, str] | None = None, text: str | None = None) -> Ran:
        """Run ``neff-cache words…``; a traceback never reaches a user, so it fails the test."""
        result = CliRunner().invoke(app, list(words), env={**self.environment, **(environment or {})}, input=text)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        return Ran(result.exit_code, result.stdout, result.stderr)

    def share(self, document: KeyDocument, program: Compiled | None = None) -> Entry:
        """Publish an entry to the shared cache."""
        assert self.url is not None
        program = program or compiled()
        transport = open_transport(self.url, self.project, {"XDG_CONFIG_HOME": str(self.config)})
        try:
            return transport.publish(entry_of(document, program.outputs, self.project), program.outputs, None).entry
        finally:
            transport.close()

    def keep(self, document: KeyDocument, program: Compiled | None = None) -> Entry:
        """Put an entry into the node tier."""
        program = program or compiled()
        entry = entry_of(document, program.outputs, self.project)
        self.tier.tree.claim()
        self.tier.put(entry, program.neff)
        return entry

    def plan(self, *entries: Entry, name: str = "plan.jsonl") -> str:
        """Write a plan of the entries, as a run's record is."""
        path = self.folder / name
        lines = [
            {
                "schema": 1,
                "project": entry.project,
                "kind": entry.kind,
                "key": entry.key,
                "label": "job",
                "compile_seconds": 60,
            }
            for entry in entries
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)


@pytest.fixture
def alone(tmp_path: Path) -> CommandLine:
    """A machine that shares nothing."""
    return CommandLine(tmp_path, None, tmp_path / "config")


@pytest.fixture
def folder(tmp_path: Path) -> CommandLine:
    """A machine with a shared folder."""
    return CommandLine(tmp_path, str(tmp_path / "shared"), tmp_path / "config")


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def served(running: Server, tmp_path: Path) -> CommandLine:
    """A machine with a cache server, in a project of its own."""
    return CommandLine(tmp_path, running.url, running.config, f"p{secrets.token_hex(6)}")


@pytest.fixture(params=["folder", "served"])
def shared(request: pytest.FixtureRequest) -> CommandLine:
    """A machine with either."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, CommandLine)
    return found
