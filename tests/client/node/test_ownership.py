"""Folders that are not ours, and files in ours that we did not make: nothing of that is ever deleted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from client.node.eviction import DAY, Evictor
from client.node.ownership import MARK, MARKER, TEMPORARY, NotOursError, is_lock_file
from client.node.tier import NodeTier
from tests.client.programs import compiled, document, entry_of

KEY = document("one").key
OTHER_KEY = "ab" * 32
SPACE = "v1/default/graph"
FOREIGN = [
    "v1/train/images/dogs/batch1/img1.jpg",
    "v1/data.csv",
    "v1/.hidden/notes.txt",
    "v1/Images/a.jpg",
    "v1/default/datasets/a.bin",
    "v1/meta/eager/aa/file",
    f"{SPACE}/ABC/file",
    f"{SPACE}/readme.txt",
    f"{SPACE}/bad-apples/apple.jpg",
    f"{SPACE}/{KEY[:2]}/{TEMPORARY}of-mine/file",
    f"{SPACE}/{KEY[:2]}/{OTHER_KEY}/model.neff",
    "photos/holiday.jpg",
]
"""Files of somebody who chose names like ours. The last lies beside the layout's folder."""
INSIDE = [
    *FOREIGN[:-1],
    f"{SPACE}/locks/notes.lock",
    f"{SPACE}/locks/{'A' * 64}.lock",
    f"{SPACE}/{KEY[:2]}/{KEY}/notes.txt",
    f"{SPACE}/{KEY[:2]}/{TEMPORARY}12-0123456789abcdef/notes.txt",
    f"{SPACE}/bad-{KEY}-12-0123456789abcdef/notes.txt",
    "v1/.slots/r-everything",
    "v1/.slots/w-1-mine",
    "v1/.slots/peaks.json.bak",
    "v1/.outages/notes",
    "v1/.launcher/notes",
]


def _put(root: Path, name: str, *, age: float) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_bytes(b"somebody's")
    past = time.time() - age
    for each in (path, *path.parents):
        if each == root:
            break
        os.utime(each, (past, past))
    return path


def _fill(tier: NodeTier, count: int) -> None:
    for number in range(count):
        outputs = compiled().outputs
        tier.put(entry_of(document(f"{number}"), outputs), outputs["model.neff"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "node"
    root.mkdir(mode=0o700)
    return root


@pytest.mark.parametrize("age", [0.0, 400 * DAY], ids=["new", "old"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_of_somebody_else_is_left_alone_and_the_job_is_told(make_cache, root, caplog, name, age):
    theirs = _put(root, name, age=age)
    before = sorted(root.rglob("*"))
    cache = make_cache(node_max_bytes=1, node_max_age=1.0)
    for program in ("one", "two"):
        assert cache.get_or_compile(document(program), compiled).source == "compile"
    assert theirs.read_bytes() == b"somebody's"
    assert sorted(root.rglob("*")) == before
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert f"{root} holds what neff-cache did not make" in warning
    assert Path(name).parts[0 if "photos" in name else 1] in warning
    assert "NEURON_CACHE_NODE_DIR" in warning


@pytest.mark.parametrize("age", [0.0, 400 * DAY], ids=["new", "old"])
def test_files_that_somebody_puts_into_our_tier_survive_all_that_is_deleted_there(root, make_cache, age):
    tier = NodeTier(root, "default")
    tier.tree.claim()
    _fill(tier, 4)
    theirs = [_put(root, name, age=age) for name in INSIDE]
    cache = make_cache(node_max_bytes=1, node_max_age=1.0, compile_slots=1)
    for program in ("one", "two", "three"):
        cache.get_or_compile(document(program), compiled)
    evictor = Evictor(tier.tree, 1, max_age=1.0)
    evictor.sweep()
    evictor.make_room(1 << 30)
    aside = {path.name for path in root.glob(f"{SPACE}/bad-{KEY}-*/*")}  # a folder without an entry counts as damaged
    assert [path for path in theirs if not path.exists() and path.name not in aside] == []
    kept = {path.parent.name for path in root.rglob("model.neff")}
    assert kept <= {KEY, OTHER_KEY}, "all entries but those with somebody's files in them are gone"


def test_what_is_set_aside_as_damaged_takes_no_file_of_others_along(root, make_cache):
    make_cache().get_or_compile(document("one"), compiled)
    theirs = _put(root, f"{SPACE}/bad-apples/apple.jpg", age=0)
    for number in range(20):
        make_cache().get_or_compile(document(f"{number}"), compiled)
        (path,) = root.glob(f"{SPACE}/*/{document(f'{number}').key}/model.neff")
        os.truncate(path, 3)
        make_cache().get_or_compile(document(f"{number}"), compiled)
    assert theirs.exists()


def test_a_tier_of_a_version_that_knew_no_marker_is_taken_over_with_its_entries(root, make_cache):
    make_cache(compile_slots=2).get_or_compile(document("one"), compiled)
    (root / "v1" / MARKER).unlink()
    assert make_cache().get_or_compile(document("one"), compiled).source == "disk"
    assert not (root / "v1" / MARKER).exists(), "a hit needs no proof, and writes nothing"
    make_cache().get_or_compile(document("two"), compiled)
    assert (root / "v1" / MARKER).read_bytes() == MARK
    assert make_cache().get_or_compile(document("two"), compiled).source == "disk"


def test_what_a_killed_process_of_ours_left_is_no_stranger(root, make_cache):
    make_cache().get_or_compile(document("one"), compiled)
    (root / "v1" / MARKER).unlink()
    unique = "1234-0123456789abcdef"
    for name in (f"v1/usage-{unique}", f"v1/{MARKER}-{unique}", f"{SPACE}/locks/{KEY}.failed-{unique}"):
        _put(root, name, age=0)
    for name in (
        f"{SPACE}/{KEY[:2]}/{TEMPORARY}{unique}",
        f"{SPACE}/bad-{KEY}-{unique}",
        "v1/.compilers",
        "device",
        "launcher",
    ):
        (root / name).mkdir(mode=0o700, exist_ok=True)
    _put(root, f"{SPACE}/{KEY[:2]}/.nfs000000000012", age=0)
    NodeTier(root, "default").tree.claim()
    assert (root / "v1" / MARKER).exists()


@pytest.mark.parametrize("content", [b"", MARK[:20], MARK[:-1]])
def test_a_marker_that_a_crash_cut_short_is_written_anew(root, content):
    NodeTier(root, "default").tree.claim()
    (root / "v1" / MARKER).write_bytes(content)
    NodeTier(root, "default").tree.claim()
    assert (root / "v1" / MARKER).read_bytes().startswith(MARK[: max(len(content), 80)])


def test_the_marker_of_another_cache_is_no_proof(root):
    (root / "v1").mkdir(mode=0o700)
    theirs = root / "v1" / MARKER
    theirs.write_bytes(
        b"Signature: 8a477f597d28d172789f06886806bc55\n# This file is a cache directory tag created by x.\n"
    )
    with pytest.raises(NotOursError, match=MARKER):
        NodeTier(root, "default").tree.claim()
    assert b"created by x" in theirs.read_bytes()


def test_jobs_of_a_version_without_a_marker_and_ours_share_a_tier(root, make_cache):
    """The older one is this one without its marker: it makes the same folders, and looks at no file beside them."""
    make_cache().get_or_compile(document("one"), compiled)
    (root / "v1" / MARKER).unlink()
    newer = make_cache()
    newer.get_or_compile(document("two"), compiled)
    assert sorted(path.name for path in (root / "v1").iterdir() if path.is_dir()) == [".slots", "default"]
    assert make_cache().get_or_compile(document("two"), compiled).source == "disk"


def test_sixty_four_processes_make_one_tier_at_once(tmp_path):
    root = tmp_path / "parent" / "node"
    code = """
import os, sys
from pathlib import Path
from client.node.tier import NodeTier
from tests.client.programs import compiled, document, entry_of
outputs = compiled().outputs
entries = [entry_of(document(f"{number}"), outputs) for number in range(64)]
go, begin = os.pipe()
children = []
for number in range(64):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(begin)
            os.read(go, 1)
            tier = NodeTier(Path(sys.argv[1]), "default")
            tier.tree.claim()
            status = 0 if tier.put(entries[number], outputs["model.neff"]) else 2
        finally:
            os._exit(status)
    children.append(child)
os.close(begin)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == str([0] * 64), done.stderr
    assert len(list(root.rglob("entry.json"))) == 64
    assert (root / "v1" / MARKER).read_bytes() == MARK
    assert not list(root.rglob(f"{MARKER}-*"))


@pytest.mark.parametrize("ending", ["lock", "1.lock", "failed", "log", "log-12-0123456789abcdef"])
def test_whatever_stands_beside_a_lock_is_known_as_ours_and_tidied_one_day(ending: str) -> None:
    assert is_lock_file(f"{'a' * 64}.{ending}")
    assert not is_lock_file(f"{'a' * 63}.{ending}")
    assert not is_lock_file(f"notes.{ending}")
