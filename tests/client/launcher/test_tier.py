"""The lean reader and the node tier proper agree about every entry."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from client.key import CompilerIdentity, Ir, KeyDocument
from client.launcher import tier as lean
from client.names import Kind
from client.node import tier as proper
from client.node import tree
from client.settings import Settings
from client.wire import Entry, Output, Producer

if TYPE_CHECKING:
    from pathlib import Path

NEFF = b"n" * 5000
COMPILER = CompilerIdentity("neuronx-cc", "1.0.0+a")
DOCUMENT = KeyDocument(Kind.CC, Ir("mlir", "mlir-text", "1", "a" * 64), COMPILER, "trn2", 2)
KEY = DOCUMENT.key


def put(root: Path, project: str = "default", *, shared: bool = False) -> Path:
    """Store an entry as the client does, and return its folder."""
    import hashlib  # noqa: PLC0415 - only here

    node = proper.NodeTier(root, project, shared=shared)
    node.tree.claim()
    output = Output("model.neff", hashlib.sha256(NEFF).hexdigest(), len(NEFF))
    entry = Entry(project, Kind.CC, KEY, (output,), "2026-11-30T00:00:00Z", 1.5, Producer("neff-cache/1", "host"))
    assert node.put(entry, NEFF)
    return root / "v1" / project / "cc" / KEY[:2] / KEY


def test_both_use_one_layout() -> None:
    assert (lean.LAYOUT, lean.ENTRY_FILE, lean.KIND) == (tree.LAYOUT, proper.ENTRY_FILE, Kind.CC)
    assert lean.TOUCH_AFTER == proper.TOUCH_AFTER


@pytest.mark.parametrize("shared", [False, True])
def test_what_the_client_stores_is_found(tmp_path: Path, shared: bool) -> None:
    put(tmp_path / "node", "team-a", shared=shared)
    environ = {"NEURON_CACHE_NODE_DIR": str(tmp_path / "node"), "NEURON_CACHE_PROJECT": "team-a"}
    environ |= {"NEURON_CACHE_NODE_SHARED": "group"} if shared else {}
    hit = lean.Tier(environ).hit(KEY)
    assert hit is not None
    entry, neff = hit
    assert (entry["key"], entry["producer"]["host"], neff) == (KEY, "host", NEFF)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.neff").write_bytes(NEFF[:-1] + b"x"),
        lambda folder: (folder / "model.neff").write_bytes(NEFF[:-1]),
        lambda folder: (folder / "model.neff").write_bytes(b""),
        lambda folder: (folder / "model.neff").unlink(),
        lambda folder: (folder / "entry.json").write_text("{"),
        lambda folder: (folder / "entry.json").write_text("[]"),
        lambda folder: (folder / "entry.json").write_text((folder / "entry.json").read_text().replace("cc", "graph")),
        lambda folder: (folder / "model.neff").chmod(0o666),
        lambda folder: folder.chmod(0o777),
        lambda folder: shutil.move(folder, f"{folder}-gone"),
        lambda folder: (shutil.move(folder, f"{folder}-moved"), folder.symlink_to(f"{folder}-moved")),
        lambda folder: (folder / "model.neff").rename(folder / "m") and (folder / "model.neff").symlink_to("m"),
        lambda folder: ((folder / "model.neff").unlink(), os.mkfifo(folder / "model.neff")),
    ],
)
def test_nothing_that_the_client_would_refuse_is_handed_out(tmp_path: Path, damage) -> None:
    damage(put(tmp_path / "node"))
    try:
        found = lean.Tier({"NEURON_CACHE_NODE_DIR": str(tmp_path / "node")}).hit(KEY)
    except Exception:  # noqa: BLE001 - any sort of no: the client proper is asked then
        found = None
    assert found is None


@pytest.mark.parametrize(
    "environ",
    [
        {"HOME": "/home/u"},
        {"HOME": "/home/u", "XDG_CACHE_HOME": "/var/c"},
        {"HOME": "/home/u", "NEURON_CACHE_NODE_DIR": " /data/node "},
        {"HOME": "/home/u", "NEURON_CACHE_NODE_DIR": "relative"},
        {"HOME": "", "XDG_CACHE_HOME": "/c", "NEURON_CACHE_PROJECT": "team-a"},
    ],
)
def test_settings_mean_the_same_to_both(environ: dict[str, str]) -> None:
    settings, tier = Settings.from_environment(environ), lean.Tier(environ)
    assert (tier.root, tier.project, tier.shared) == (str(settings.node_dir), settings.project, settings.node_shared)


@pytest.mark.parametrize("name", ["PROJECT", "NODE_SHARED", "MODE"])
def test_settings_that_mean_nothing_are_left_to_the_client_which_says_so(name: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any
        lean.Tier({"HOME": "/h", f"NEURON_CACHE_{name}": "What?"})
