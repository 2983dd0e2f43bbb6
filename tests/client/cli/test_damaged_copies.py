"""Commands that bring entries into the shared cache: "there already" means there and whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client.layout import entry_folder
from client.names import Kind
from client.transports import open_transport
from tests.client.cli.test_mirroring import ALL
from tests.client.programs import compiled, document
from tests.support import foreign_trees

if TYPE_CHECKING:
    from client.wire import Entry
    from tests.client.cli.conftest import CommandLine
    from tests.support.servers import Server


@pytest.fixture
def store(shared: CommandLine, running: Server) -> Path:
    """Where the files of the shared cache lie."""
    assert shared.url is not None
    return running.data / "store" if shared.url.startswith("http") else Path(shared.url)


def _shorten(store: Path, project: str, kind: Kind, key: str) -> None:
    """Cut an entry's largest output short."""
    folder = store / entry_folder(project, kind, key)
    file = max(folder.glob("[0-9a-f]*"), key=lambda found: found.stat().st_size)
    file.write_bytes(file.read_bytes()[:50])


def _fetched(line: CommandLine, kind: Kind, key: str) -> bytes | None:
    assert line.url is not None
    transport = open_transport(line.url, line.project, {"XDG_CONFIG_HOME": str(line.config)})
    try:
        found = transport.fetch(kind, key)
    finally:
        transport.close()
    return None if found is None else found.neff


@pytest.mark.parametrize("how", ["short", "another byte"])
def test_put_replaces_a_damaged_copy_and_says_that_it_stored_one(shared: CommandLine, store: Path, how: str) -> None:
    program = compiled()
    described, built = shared.folder / "key.json", shared.folder / "model.neff"
    described.write_text(json.dumps(document("damaged").to_json()))
    built.write_bytes(program.neff)
    words = ("put", str(described), str(built), "--json")
    entry = shared.run(*words).json["entry"]
    folder = store / entry_folder(shared.project, Kind.GRAPH, entry["key"])
    file = folder / entry["outputs"][0]["sha256"]
    content = file.read_bytes()
    file.write_bytes(content[:100] if how == "short" else content[:-1] + bytes([content[-1] ^ 1]))
    again = shared.run(*words)
    assert (again.status, again.json["created"]) == (0, True)
    assert _fetched(shared, Kind.GRAPH, entry["key"]) == program.neff
    once_more = shared.run(*words)
    assert (once_more.status, once_more.json["created"]) == (0, False)


def test_a_bundle_replaces_damaged_copies(shared: CommandLine, store: Path) -> None:
    entries: list[Entry] = [shared.share(document(f"bundled {number}")) for number in range(2)]
    bundle = str(shared.folder / "bundle")
    assert shared.run("bundle", "export", shared.plan(*entries), bundle).status == 0
    _shorten(store, shared.project, Kind.GRAPH, entries[0].key)
    ran = shared.run("bundle", "import", bundle, "--to", "shared", "--json")
    assert (ran.status, ran.json["stored"], ran.json["present"]) == (0, 1, 1)
    assert _fetched(shared, Kind.GRAPH, entries[0].key) is not None


@pytest.mark.parametrize("command", ["import", "sync"])
def test_what_is_mirrored_replaces_damaged_copies(shared: CommandLine, store: Path, command: str) -> None:
    tree = shared.folder / "here"
    foreign_trees.made("npc", "graph").write(tree)
    words = {
        "import": ("import", str(tree), "--layout", "npc", *ALL, "--json"),
        "sync": ("sync", str(tree), "--layout", "npc", "--push", *ALL, "--json"),
    }[command]

    def pushed() -> tuple[int, int]:
        ran = shared.run(*words)
        assert ran.status == 0
        value = ran.json if command == "import" else ran.json["pushed"]
        return value["imported" if command == "import" else "pushed"], value["present"]

    assert pushed() == (1, 0)
    (folder,) = (store / shared.project / "foreign").glob("??/*")
    _shorten(store, shared.project, Kind.FOREIGN, folder.name)
    assert pushed() == (1, 0)
    assert pushed() == (0, 1)
