"""Files whose names are as long as the file system allows: what stands beside one while it is written is shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.bundles import Manifest, export
from client.cli.keys import generate, trust
from client.cli.looking import _write as write_output
from client.launcher.delivery import write as deliver
from client.plans import read_plan, write_plan
from client.pulling import SILENT
from client.record import add_to_summary
from client.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONGEST = {"é": "é" * 127 + ".", "中": "中" * 85, "x": "x" * 255}
"""By letter: names of 255 bytes, which Linux's file systems take and no longer one."""


def _bundle(path: Path) -> None:
    assert export(path, [], SILENT) == Manifest.of([])


def _plan(path: Path) -> None:
    write_plan(path, [])
    assert read_plan(path, "default") == []


def _summary(path: Path) -> None:
    for _ in range(2):
        add_to_summary(path, Statistics(pids=(1,)))


def _trusted_keys(path: Path) -> None:
    generate(path.parent / "key")
    trust(str(path.parent / "key.pub"), file=path)
    (path.parent / "key").unlink()
    (path.parent / "key.pub").unlink()


WRITERS: dict[str, Callable[[Path], None]] = {
    "the launcher's output": lambda path: deliver(str(path), b"neff"),
    "what `get` writes": lambda path: write_output(path, b"neff", force=True),
    "a bundle": _bundle,
    "a plan": _plan,
    "a summary": _summary,
    "a list of trusted keys": _trusted_keys,
}


@pytest.mark.parametrize("letter", LONGEST)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_with_the_longest_name_is_written_and_nothing_is_left_beside_it(
    writer: str, letter: str, tmp_path: Path
) -> None:
    path = tmp_path / LONGEST[letter]
    WRITERS[writer](path)
    left = {found.name for found in tmp_path.iterdir() if not found.name.endswith(".lock")}
    assert left == {path.name}
