from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

import pytest

from client.foreign.layout import State
from client.foreign.table import LAYOUTS
from client.foreign.writing import LEFTOVER_SECONDS, Writer
from client.node.files import Files
from tests.support import foreign_trees

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.foreign_trees import ForeignEntry


@pytest.fixture(params=foreign_trees.LABELS)
def label(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _contents(label: str, entry: ForeignEntry) -> dict[str, bytes]:
    return {file: content for file, content in entry.files.items() if file != LAYOUTS[label].marker}


def test_what_is_written_is_what_that_cache_itself_would_have_written(label: str, tmp_path: Path) -> None:
    entry = foreign_trees.made(label, "a")
    assert Writer(tmp_path / "ours", LAYOUTS[label]).write(entry.name, _contents(label, entry))
    entry.write(tmp_path / "theirs")
    ours, theirs = (foreign_trees.taken_for_complete(label, tmp_path / side) for side in ("ours", "theirs"))
    assert ours == theirs != {}
    assert foreign_trees.leftovers(tmp_path) == []


def test_an_entry_that_stands_there_is_never_replaced(label: str, tmp_path: Path) -> None:
    first, second = foreign_trees.made(label, "a"), foreign_trees.made(label, "a")
    first.write(tmp_path)
    before = foreign_trees.taken_for_complete(label, tmp_path)
    writer = Writer(tmp_path, LAYOUTS[label])
    there = writer.there(first.name)
    assert there is not None
    assert there.state is State.COMPLETE
    assert not writer.write(second.name, _contents(label, second))
    assert foreign_trees.taken_for_complete(label, tmp_path) == before
    assert foreign_trees.leftovers(tmp_path) == []


def test_a_job_that_begins_while_we_write_keeps_its_place(tmp_path: Path) -> None:
    entry = foreign_trees.npc("a")

    class Racing(Files):
        """A file system on which a job begins in the moment before our rename."""

        def rename(self, old: str, new: str, parent: int, new_parent: int | None = None) -> None:
            entry.write(tmp_path, last=1)
            super().rename(old, new, parent, new_parent)

    assert not Writer(tmp_path, LAYOUTS["npc"], files=Racing()).write(entry.name, _contents("npc", entry))
    assert [path.name for path in (tmp_path / entry.folder).iterdir()] == ["model.hlo_module.pb"]
    assert foreign_trees.leftovers(tmp_path) == []


def test_a_file_system_without_links_works_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(1, "no links here")

    monkeypatch.setattr(os, "link", link)
    first, second = foreign_trees.torchneuron("a"), foreign_trees.torchneuron("a")
    writer = Writer(tmp_path, LAYOUTS["torchneuron"])
    assert writer.write(first.name, first.files)
    assert not writer.write(second.name, second.files)
    assert list(foreign_trees.taken_for_complete("torchneuron", tmp_path).values()) == [first.files]


@pytest.mark.parametrize(
    ("root", "folder", "file"),
    [(0o755, 0o755, 0o644), (0o700, 0o700, 0o600), (0o2775, 0o2775, 0o664), (0o777, 0o777, 0o664)],
)
def test_modes_follow_the_caches_root_whatever_the_umask(
    label: str, tmp_path: Path, root: int, folder: int, file: int
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(root)
    entry = foreign_trees.made(label, "a")
    before = os.umask(0o077)
    try:
        Writer(cache, LAYOUTS[label]).write(entry.name, _contents(label, entry))
    finally:
        os.umask(before)
    for path in cache.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (folder if path.is_dir() else file)


def test_a_link_in_place_of_a_folder_leads_nowhere(tmp_path: Path) -> None:
    outside, cache = tmp_path / "outside", tmp_path / "cache"
    outside.mkdir()
    cache.mkdir()
    entry = foreign_trees.npc("a")
    (cache / entry.folder.partition("/")[0]).symlink_to(outside)
    with pytest.raises(OSError, match="Not a directory|Too many levels"):
        Writer(cache, LAYOUTS["npc"]).write(entry.name, _contents("npc", entry))
    assert list(outside.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing(label: str, tmp_path: Path) -> None:
    class Full(Files):
        def write(self, descriptor: int, data: bytes) -> None:
            super().write(descriptor, data[:1])
            raise OSError(28, "No space left on device")

    entry = foreign_trees.made(label, "a")
    with pytest.raises(OSError, match="No space"):
        Writer(tmp_path, LAYOUTS[label], files=Full()).write(entry.name, _contents(label, entry))
    assert foreign_trees.taken_for_complete(label, tmp_path) == {}
    assert foreign_trees.leftovers(tmp_path) == []


def test_leftovers_of_killed_processes_go_after_an_hour_and_nothing_else(label: str, tmp_path: Path) -> None:
    entry = foreign_trees.made(label, "a")
    entry.write(tmp_path)
    parent = (tmp_path / entry.folder).parent if LAYOUTS[label].marker else tmp_path / entry.folder
    (parent / ".neff-cache-0123456789abcdef").mkdir()
    (parent / ".neff-cache-0123456789abcdef" / "model.neff").write_bytes(b"x")
    (parent / ".neff-cache-fedcba9876543210").write_bytes(b"x")
    theirs = parent / ".neff-cache-notes"
    theirs.write_bytes(b"somebody's")
    assert Writer(tmp_path, LAYOUTS[label]).sweep() == 0
    later = time.time() + LEFTOVER_SECONDS + 60
    before = foreign_trees.taken_for_complete(label, tmp_path)
    assert Writer(tmp_path, LAYOUTS[label], now=lambda: later).sweep() == 2
    assert foreign_trees.leftovers(tmp_path) == [theirs]
    assert foreign_trees.taken_for_complete(label, tmp_path) == before != {}
