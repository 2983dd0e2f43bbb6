from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from client.names import Kind
from client.node.files import Files
from client.node.tier import MAX_BAD, TOUCH_AFTER, DamagedEntryError, NodeTier, Stored
from tests.client.programs import build, compiled, document, entry_of

if TYPE_CHECKING:
    from pathlib import Path

GRAPH = Kind.GRAPH


@pytest.fixture
def root(tmp_path):
    return tmp_path / "tier"


@pytest.fixture
def tier(root):
    return _tier(root)


def _tier(root: Path, files: Files | None = None, **options: Any) -> NodeTier:
    NodeTier(root, "default").tree.claim()
    return NodeTier(root, "default", files=files, **options)


def _store(tier: NodeTier, name: str = "program") -> bytes:
    outputs = compiled().outputs
    assert tier.put(entry_of(document(name), outputs), outputs["model.neff"])
    return outputs["model.neff"]


def _directory(tier: NodeTier, name: str = "program") -> Path:
    key = document(name).key
    return tier.tree.root / "v1" / "default" / "graph" / key[:2] / key


def _get(tier: NodeTier, name: str = "program") -> Stored | None:
    return tier.get(GRAPH, document(name).key)


def test_what_is_stored_is_found_with_its_bytes_and_its_key_document(tier):
    neff = _store(tier)
    stored = _get(tier)
    assert stored is not None
    assert stored.neff == neff
    assert stored.entry.key_document == document().to_json()
    assert sorted(path.name for path in _directory(tier).iterdir()) == ["entry.json", "model.neff"]


def test_an_absent_entry_is_a_miss_and_makes_nothing(root):
    tier = NodeTier(root, "default")
    assert _get(tier) is None
    assert not root.exists()


def test_the_first_build_on_a_node_stays(tier):
    neff = _store(tier)
    second = compiled().outputs
    assert not tier.put(entry_of(document(), second), second["model.neff"])
    stored = _get(tier)
    assert stored is not None
    assert stored.neff == neff


DAMAGE = {
    "cut in half": lambda path: os.truncate(path / "model.neff", 500),
    "emptied": lambda path: os.truncate(path / "model.neff", 0),
    "longer": lambda path: (path / "model.neff").write_bytes((path / "model.neff").read_bytes() + b"x"),
    "a bit flipped": lambda path: _flip(path / "model.neff"),
    "gone": lambda path: (path / "model.neff").unlink(),
    "a link": lambda path: _link(path / "model.neff"),
    "entry emptied": lambda path: os.truncate(path / "entry.json", 0),
    "entry cut": lambda path: os.truncate(path / "entry.json", 100),
    "entry gone": lambda path: (path / "entry.json").unlink(),
    "entry of another key": lambda path: _rewrite(path / "entry.json", key="0" * 64),
    "entry of another project": lambda path: _rewrite(path / "entry.json", project="other"),
    "entry without program": lambda path: _rewrite(path / "entry.json", outputs=[]),
    "entry too deep": lambda path: (path / "entry.json").write_text("[" * 100_000),
    "nothing left": lambda path: [(path / name).unlink() for name in ("entry.json", "model.neff")],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_never_served_and_makes_room_for_a_good_one(tier, damage):
    other = _store(tier, "other")
    _store(tier)
    damage(_directory(tier))
    with pytest.raises(DamagedEntryError):
        _get(tier)
    assert _get(tier) is None, "the key is free again"
    neff = _store(tier)
    stored, untouched = _get(tier), _get(tier, "other")
    assert stored is not None
    assert stored.neff == neff
    assert untouched is not None
    assert untouched.neff == other


def test_damaged_entries_are_kept_for_a_look_but_not_without_bound(tier):
    for _ in range(MAX_BAD + 3):
        _store(tier)
        DAMAGE["emptied"](_directory(tier))
        with pytest.raises(DamagedEntryError):
            _get(tier)
    namespace = _directory(tier).parents[1]
    assert len([path for path in namespace.iterdir() if path.name.startswith("bad-")]) == MAX_BAD


def test_an_entry_made_good_while_its_damage_was_looked_at_stays(root):
    """Another process sets the damaged entry aside and puts a good one there between our look and our rename."""

    class Racing(Files):
        def rename(self, old: str, new: str, parent: int, new_parent: int | None = None) -> None:
            if new.startswith("bad-") and not raced:
                raced.append(new)
                super().rename(old, "tmp-elsewhere", parent)
                good.append(_store(plain))
            super().rename(old, new, parent, new_parent)

    raced: list[str] = []
    good: list[bytes] = []
    plain, tier = _tier(root), _tier(root, Racing())
    _store(plain)
    DAMAGE["emptied"](_directory(plain))
    assert _get(tier) is None
    stored = _get(tier)
    assert stored is not None
    assert stored.neff == good[0]


def test_an_entry_that_is_evicted_while_it_is_read_is_a_miss_and_no_damage(root):
    class Evicting(Files):
        def open_file(self, name: str, parent: int) -> int:
            if name == "model.neff":
                plain.remove(GRAPH, document().key)
            return super().open_file(name, parent)

    plain, tier = _tier(root), _tier(root, Evicting())
    _store(plain)
    assert _get(tier) is None
    assert not [path for path in _directory(plain).parents[1].iterdir() if path.name.startswith("bad-")]


def test_a_consumer_that_writes_to_its_copy_changes_nothing_here(tier, tmp_path):
    neff = _store(tier)
    stored = _get(tier)
    assert stored is not None
    consumed = tmp_path / "consumed.neff"
    consumed.write_bytes(stored.neff)
    os.truncate(consumed, 0)
    again = _get(tier)
    assert again is not None
    assert again.neff == neff


def test_reads_write_nothing_while_the_time_of_last_use_is_recent(root):
    touched: list[int] = []

    class Counting(Files):
        def touch(self, descriptor: int) -> None:
            touched.append(descriptor)
            super().touch(descriptor)

    tier = _tier(root, Counting())
    _store(tier)
    for _ in range(5):
        _get(tier)
    assert not touched
    old = _directory(tier).stat().st_mtime - TOUCH_AFTER - 10
    os.utime(_directory(tier), (old, old))
    for _ in range(5):
        _get(tier)
    assert len(touched) == 1
    assert _directory(tier).stat().st_mtime > old


# File systems that fail


def _failing(method: str, *codes: int, name: str = "") -> Files:
    """Return files whose ``method`` fails with each of ``codes`` in turn, for names that hold ``name``."""
    left = list(codes)

    class Failing(Files):
        pass

    def fail(self: Files, *arguments: Any, **options: Any) -> Any:
        if left and name in str(arguments[0]):
            code = left.pop(0)
            raise OSError(code, os.strerror(code))
        return getattr(Files, method)(self, *arguments, **options)

    setattr(Failing, method, fail)
    return Failing()


def test_a_stale_handle_is_tried_again(root):
    neff = _store(_tier(root))
    stored = _get(_tier(root, _failing("open_file", errno.ESTALE)))
    assert stored is not None
    assert stored.neff == neff


def test_a_handle_that_stays_stale_is_a_miss(root):
    _store(_tier(root))
    assert _get(_tier(root, _failing("open_file", errno.ESTALE, errno.ESTALE))) is None


def test_a_rename_that_was_done_but_reported_as_failed_is_no_failure(root):
    class Lossy(Files):
        def rename(self, old: str, new: str, parent: int, new_parent: int | None = None) -> None:
            super().rename(old, new, parent, new_parent)
            if new == document().key:
                raise FileNotFoundError(errno.ENOENT, "the answer to the first try was lost")

    tier = _tier(root, Lossy())
    neff = _store(tier)
    stored = _get(tier)
    assert stored is not None
    assert stored.neff == neff


@pytest.mark.parametrize("method", ["make_directory", "create_file", "write", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMLINK, errno.EIO], ids=errno.errorcode.get)
def test_a_write_that_fails_leaves_nothing_behind(root, method, code):
    tier = _tier(root)
    _store(tier, "other")
    failing = _tier(root, _failing(method, code))
    outputs = compiled().outputs
    with pytest.raises(OSError, match=os.strerror(code)):
        failing.put(entry_of(document(), outputs), outputs["model.neff"])
    assert _get(tier) is None
    left = [path for path in root.rglob("*") if path.name.startswith("tmp-")]
    assert not left
    _store(tier)


def test_a_directory_that_is_busy_when_it_is_removed_is_no_failure(root):
    tier = _tier(root, _failing("remove_directory", errno.EBUSY))
    _store(tier)
    tier.remove(GRAPH, document().key)
    assert _get(tier) is None


def test_sixteen_writers_without_any_lock_leave_one_whole_entry(tier):
    def write(_: int) -> bytes:
        neff = build(200_000)
        tier.put(entry_of(document(), {"model.neff": neff}), neff)
        return neff

    with ThreadPoolExecutor(16) as pool:
        builds = set(pool.map(write, range(16)))
    stored = _get(tier)
    assert stored is not None
    assert stored.neff in builds
    assert len(list(_directory(tier).parent.iterdir())) == 1


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _link(path: Path) -> None:
    elsewhere = path.parents[6] / "elsewhere"
    elsewhere.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(elsewhere)


def _rewrite(path: Path, **members: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))
