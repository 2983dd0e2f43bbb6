"""Which paths are asked with a limit: those behind a file system that may stand still, by whatever way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client import mounts
from client.mounts import may_stall
from tests.support.silent import silent_file_system

if TYPE_CHECKING:
    from pathlib import Path

TABLE = {"/": "overlay", "/data": "xfs", "/data/far": "nfs4", "/data/far/near": "ext4", "/mnt/with space": "fuse.x"}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_table", TABLE)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", False),
        ("/data", False),
        ("/data/near/by", False),
        ("/data/farther", False),
        ("/data/far", True),
        ("/data/far/near/by", True),  # the way to it leads over the other
        ("/data/x/../far/y", True),
        ("/mnt/with space/x", True),
        ("/mnt/with", False),
    ],
)
def test_a_path_is_told_by_what_it_lies_on_and_leads_over(path: str, expected: bool) -> None:
    assert may_stall(path) is expected


@pytest.mark.parametrize("target", ["/data/far", "../far", "{folder}/other", "./../far/.", "loop"])
def test_links_are_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str) -> None:
    monkeypatch.setattr(mounts, "_table", {**TABLE, f"{tmp_path}/far": "nfs"})
    (tmp_path / "a").mkdir()
    (tmp_path / "other").symlink_to("far")
    (tmp_path / "a" / "loop").symlink_to("loop")
    (tmp_path / "a" / "link").symlink_to(target.format(folder=tmp_path))
    assert may_stall(str(tmp_path / "a" / "link" / "tier")) is (target != "loop")


def test_without_the_kernels_list_nothing_is_sure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse() -> dict[str, str]:
        raise OSError

    monkeypatch.setattr(mounts, "_table", {})
    monkeypatch.setattr(mounts, "_read_table", refuse)
    assert may_stall(str(tmp_path))


def test_one_whose_server_is_gone_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mounts, "_table", {})
    assert not may_stall(str(tmp_path / "not" / "there"))
    with silent_file_system(tmp_path / "a place") as gone:
        mounts._table.clear()
        (tmp_path / "link").symlink_to(gone / "below")
        assert may_stall(str(gone))
        assert may_stall(str(tmp_path / "link" / "tier"))
    mounts._table.clear()
