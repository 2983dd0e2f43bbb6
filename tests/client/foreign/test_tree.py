from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError
from client.foreign import tree as tree_module
from client.foreign.tree import FolderTree, UnreadableError
from client.node.files import Files

if TYPE_CHECKING:
    from pathlib import Path


class OthersFiles(Files):
    """A file system on which one name belongs to somebody else."""

    def __init__(self, name: str, owner: int) -> None:
        self._name = name
        self._owner = owner

    def status_of(self, name: str, parent: int) -> os.stat_result:
        status = super().status_of(name, parent)
        if name != self._name:
            return status
        fields = list(status)
        fields[4] = self._owner
        return os.stat_result(fields)


def test_files_are_listed_and_read_as_they_lie(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"content")
    tree = FolderTree(tmp_path)
    (listed,) = tree.files()
    assert (listed.path, listed.size, listed.refusal) == ("a/b/c", 7, "")
    assert tree.read(listed) == b"content"


def test_a_link_is_never_followed_out_of_the_tree(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("not theirs")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(secret)
    (root / "file").symlink_to(secret / "file")
    tree = FolderTree(root)
    assert {(each.path, each.refusal) for each in tree.files()} == {
        ("file", "is a symbolic link"),
        ("folder", "is a symbolic link"),
    }
    (root / "real").mkdir()
    (root / "real" / "file").write_text("not theirs")
    listed = next(each for each in tree.files() if each.path == "real/file")
    (root / "real").rename(root / "moved")
    (root / "real").symlink_to(secret)
    with pytest.raises(UnreadableError):
        tree.read(listed)


def test_the_root_itself_may_be_a_link_to_a_larger_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "file").write_text("x")
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    assert [each.path for each in FolderTree(tmp_path / "cache").files()] == ["file"]


def test_a_pipe_does_not_hang_the_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.neff")
    tree = FolderTree(tmp_path)
    (listed,) = tree.files()
    assert listed.refusal == "is no regular file"
    with pytest.raises(UnreadableError):
        tree.read(listed)


def test_another_users_file_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    files = OthersFiles("file", os.geteuid() + 4321)
    (refused,) = FolderTree(tmp_path, files=files).files()
    assert "--any-owner" in refused.refusal
    (taken,) = FolderTree(tmp_path, files=files, any_owner=True).files()
    assert taken.refusal == ""


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MAX_FILE", 10)
    (tmp_path / "file").write_bytes(bytes(11))
    (listed,) = FolderTree(tmp_path).files()
    assert listed.refusal.startswith("is larger")


def test_a_file_that_changed_since_it_was_listed_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    tree = FolderTree(tmp_path)
    (listed,) = tree.files()
    (tmp_path / "file").write_bytes(b"afterw")
    os.utime(tmp_path / "file", (5, 5))
    with pytest.raises(UnreadableError, match="changed"):
        tree.read(listed)


def test_a_root_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        list(FolderTree(tmp_path / "none").files())
