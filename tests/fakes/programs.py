"""Puts our stand-ins for AWS's programs where a test can find them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.waiting import HANG_SECONDS

HERE = Path(__file__).parent


@dataclass(frozen=True)
class FakeCompiler:
    """A ``neuronx-cc`` in a directory of its own."""

    directory: Path

    @property
    def program(self) -> Path:
        return self.directory / "neuronx-cc"

    def set_mode(self, mode: str) -> None:
        (self.directory / "mode").write_text(mode)

    @property
    def calls(self) -> list[dict[str, Any]]:
        record = self.directory / "calls.jsonl"
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    @property
    def grandchild(self) -> int:
        return int((self.directory / "grandchild.pid").read_text())


def install_neuronx_cc(directory: Path) -> FakeCompiler:
    """Install the program ``neuronx-cc`` in ``directory``, to be put on PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    fake = FakeCompiler(directory)
    fake.program.write_text(f"#!{sys.executable} -S\n{(HERE / 'neuronx_cc.py').read_text()}")
    fake.program.chmod(0o755)
    return fake


def build_libnrt(directory: Path) -> Path:
    """Build ``libnrt.so.1`` from `libnrt.c` in ``directory``."""
    compiler = shutil.which("cc") or shutil.which("c++")
    assert compiler is not None, "building the device library needs a C++ compiler anyway"
    library = directory / "libnrt.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-x", "c", str(HERE / "libnrt.c")]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=HANG_SECONDS)
    return library
