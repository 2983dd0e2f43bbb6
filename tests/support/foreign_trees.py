"""Trees as other caches write them: their true names and hashes, their files, their order of writing.

Names are derived as those caches derive them (see ``docs/foreign.md``): the flags hash of the Neuron Persistent Cache
is the first 8 digits of the MD5 of the flags file's text.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client import neff

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VERSION = "2.27.5334.0+f702b353"
TARGET = "trn2"
LABELS = ("npc", "libtorch-lite", "libtorch-lite-remote", "torchneuron")


def program(size: int = 300) -> bytes:
    """Return a new build of a program."""
    return neff.pack({"text": os.urandom(size)}, name="a.neff", build_version="2.27", uuid=os.urandom(16))


def flags_hash(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]


@dataclass(frozen=True)
class ForeignEntry:
    """One entry as it lies in a tree: the cache's name, its folder, and files in the order of writing."""

    name: str
    folder: str
    files: dict[str, bytes]

    def write(self, root: Path, *, last: int | None = None) -> Path:
        """Write the entry, or only its first ``last`` files, as that cache does."""
        folder = root / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in list(self.files.items())[:last]:
            (folder / file).write_bytes(content)
        return folder


def npc(graph: str, *, flags: Sequence[str] = ("--target=trn2", "-O1"), version: str = VERSION) -> ForeignEntry:
    """Return an entry of the Neuron Persistent Cache; ``graph`` stands for the traced module."""
    text = json.dumps(list(flags))
    digits = int(hashlib.sha256(graph.encode()).hexdigest()[:16], 16)
    name = f"neuronxcc-{version}/MODULE_{digits}+{flags_hash(text)}"
    files = {
        "model.hlo_module.pb": f"hlo of {graph}".encode(),
        "compile_flags.json": text.encode(),
        "model.neff": program(),
        "model.done": b"",
    }
    return ForeignEntry(name, name, files)


def npc_of_old(graph: str) -> ForeignEntry:
    """Return one as older releases wrote it: flags as text, the module packed."""
    text = "--model-type=transformer"
    name = f"neuronxcc-2.12.54.0+f631c2365/MODULE_{hashlib.sha256(graph.encode()).hexdigest()[:20]}+{flags_hash(text)}"
    files = {
        "model.hlo.pb.gz": os.urandom(40),
        "compile_flags.txt": text.encode(),
        "model.neff": program(),
        "model.done": b"",
    }
    return ForeignEntry(name, name, files)


def _digest(graph: str) -> str:
    return hashlib.md5(graph.encode(), usedforsecurity=False).hexdigest()


def libtorch_lite(graph: str, *, base: str = "neuron/compile_cache/") -> ForeignEntry:
    key = _digest(graph)
    files = {
        "graph.hlo": f"hlo of {graph}".encode(),
        f"graph_{key}.neff": program(),
        ".artifact_metadata_v0.json": json.dumps({"graph": graph}).encode(),
        ".compilation_complete": b"",
    }
    return ForeignEntry(key, f"{base}{key}", files)


def torchneuron(graph: str) -> ForeignEntry:
    key = _digest(graph)
    return ForeignEntry(key, f"{key[:2]}/{key[2:4]}", {f"{key}.neff": program()})


def made(label: str, graph: str) -> ForeignEntry:
    """Return an entry in a layout by the layout's name."""
    match label:
        case "npc":
            return npc(graph)
        case "libtorch-lite":
            return libtorch_lite(graph)
        case "libtorch-lite-remote":
            return libtorch_lite(graph, base="")
        case _:
            return torchneuron(graph)


def taken_for_complete(label: str, root: Path) -> dict[str, dict[str, bytes]]:
    """Return what the other cache would use: files by name, by the entry's folder (by its file where that is all).

    Written by the facts alone, not with our layouts: it judges them.
    """
    if label == "torchneuron":
        return {str(path.relative_to(root)): {path.name: path.read_bytes()} for path in root.glob("??/??/*.neff")}
    pattern, marker = {
        "npc": ("neuronxcc-*/MODULE_*", "model.done"),
        "libtorch-lite": (f"neuron/compile_cache/{'[0-9a-f]' * 32}", ".compilation_complete"),
        "libtorch-lite-remote": ("[0-9a-f]" * 32, ".compilation_complete"),
    }[label]
    folders = [folder for folder in root.glob(pattern) if (folder / marker).exists()]
    return {
        str(folder.relative_to(root)): {path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders
    }


def leftovers(root: Path) -> list[Path]:
    """Return what we left behind and no cache reads."""
    return sorted(root.rglob(".neff-cache-*"))
