"""The store on a disk, beyond the contract: folders and files of others, which nothing may ever delete."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

import pytest

from cache_server.address import Address
from cache_server.stores.base import MAX_SMALL_OBJECT, StoreError
from cache_server.stores.local import MARKER, LocalStore
from client.layout import ENTRY_FILE
from client.names import Kind
from tests.cache_server.harness import build

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cache_server.harness import InProcess

ADDRESS = Address("default", Kind.GRAPH, "ab" * 32)
YEAR = 365 * 86400.0
FOREIGN = [
    ".uploads/holiday.jpg",
    "wp-content/uploads/a.jpg",
    "v1/train/images/dogs/batch1/img1.jpg",
    "index.html",
    "Documents/letter.txt",
]


def _put(path: Path, *, age: float = YEAR) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"somebody's")
    past = time.time() - age
    for each in (path, path.parent, path.parent.parent):
        os.utime(each, (past, past))
    return path


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_of_somebody_else_becomes_no_store_and_loses_nothing(tmp_path: Path, name: str) -> None:
    theirs = _put(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=r"holds what neff-cache did not make \('.*'\).*--store"):
        LocalStore(tmp_path).open()
    assert sorted(tmp_path.rglob("*")) == before
    assert theirs.read_bytes() == b"somebody's"


def test_a_store_of_a_version_that_knew_no_marker_is_taken_over(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.open()
    store.create_entry(ADDRESS, b"{}")
    _put(tmp_path / "store" / ".uploads" / "ab" / ".." / ("0" * 32))
    (tmp_path / "store" / ".uploads" / "ab").rmdir()
    (tmp_path / "store" / MARKER).unlink()
    store.open()
    assert (tmp_path / "store" / MARKER).is_file()
    assert store.read_entry(ADDRESS) == b"{}"
    assert [file.name for file in store.walk()] == [f"{ADDRESS.path}/{ENTRY_FILE}"]


def test_a_mixed_folder_is_a_store_once_somebody_says_so(tmp_path: Path) -> None:
    theirs = _put(tmp_path / "Documents" / "letter.txt")
    (tmp_path / MARKER).touch()
    store = LocalStore(tmp_path)
    store.open()
    store.sweep_uploads(math.inf)
    store.sweep_quarantine(math.inf)
    assert theirs.exists()


INSIDE = [
    ".uploads/holiday.jpg",
    f".uploads/{'a' * 32}/holiday.jpg",
    "quarantine/photos/2019/summer/beach/a.jpg",
    f"quarantine/default/graph/{'ab' * 32}/20200101T000000Z/a.jpg",
    f"quarantine/default/images/{'ab' * 32}/20200101T000000Z/{'0' * 64}",
    f"quarantine/default/graph/beach/20200101T000000Z/{'0' * 64}",
    "v1/train/images/dogs/batch1/img1.jpg",
]


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("age", [0.0, YEAR], ids=["new", "old"])
def test_files_of_others_survive_every_sweep(tmp_path: Path, name: str, age: float) -> None:
    store = LocalStore(tmp_path)
    store.open()
    theirs = _put(tmp_path / name, age=age)
    abandoned = _put(tmp_path / ".uploads" / ("0" * 32))
    aside = _put(tmp_path / f"quarantine/default/graph/{'cd' * 32}/20200101T000000Z/{ENTRY_FILE}")
    assert store.sweep_uploads(time.time() + 10) == 1
    store.sweep_quarantine(time.time() + 10)
    assert theirs.read_bytes() == b"somebody's"
    assert not abandoned.exists()
    assert not aside.exists()


@pytest.mark.parametrize("name", ["img1.jpg", "notes.txt", "AB" * 32, f"{'0' * 64}.jpg", "lease-mine.json"])
def test_what_somebody_puts_beside_an_entry_survives_sweep_delete_and_quarantine(server: InProcess, name: str) -> None:
    kept = []
    for number, how in enumerate(("sweep", "delete", "quarantine")):
        built = build(f"{number}")
        server.publish(built)
        folder = server.entry_path(built).parent
        kept.append(_put(folder / name))
        if how == "delete":
            assert server.call("DELETE", built.path).status_code == 204
        elif how == "quarantine":
            output = built.entry.outputs[0]
            path = next(each for each in folder.iterdir() if each.name.startswith(output.sha256))
            path.chmod(0o600)
            path.write_bytes(b"damaged")
            answer = server.call("POST", f"{built.path}/suspect", json={"sha256": output.sha256})
            assert answer.json()["state"] == "quarantined"
    server.service.sweeping.sweep()
    assert [path.read_bytes() for path in kept] == [b"somebody's"] * 3


def test_a_huge_entry_json_takes_no_memory_and_is_no_verdict(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.open()
    store.create_entry(ADDRESS, b"{}")
    path = tmp_path / ADDRESS.path / ENTRY_FILE
    path.chmod(0o600)
    os.truncate(path, 1 << 40)
    with pytest.raises(StoreError, match=str(MAX_SMALL_OBJECT)):
        store.read_entry(ADDRESS)
