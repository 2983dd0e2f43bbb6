"""Whatever stands, or fails, where a file of the tier should be: hits, misses and failed compiles end as ever."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from client.errors import CompileError, ConfigurationError, Failure
from client.node.files import Files
from tests.client.programs import compiled, document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from client.artifact import Compiled

MOUNT, UMOUNT = (shutil.which(name) or name for name in ("mount", "umount"))
KEY = document("there").key
ENTRY = f"v1/default/graph/{KEY[:2]}/{KEY}"
PATHS = [
    "",
    "v1",
    "v1/CACHEDIR.TAG",
    "v1/usage",
    "v1/sweep.lock",
    "v1/.slots",
    "v1/.slots/door",
    "v1/.slots/peaks.json",
    "v1/default",
    "v1/default/graph",
    "v1/default/graph/locks",
    f"v1/default/graph/locks/{KEY}.lock",
    f"v1/default/graph/locks/{KEY}.failed",
    f"v1/default/graph/{KEY[:2]}",
    ENTRY,
    f"{ENTRY}/entry.json",
    f"{ENTRY}/model.neff",
]


def refuse() -> Compiled:
    raise CompileError(Failure("diagnosis", "NCC_EXYZ001: no such thing", "the log"))


def spoil(path: Path, fault: str) -> None:
    """Put something in the place of ``path`` that nobody expects there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if fault in MODES:
        if not path.exists():
            make = path.touch if path.suffix or path.name in ("usage", "door") else path.mkdir
            make()
        if fault == "another's":
            os.chown(path, 65533, 65533)
        path.chmod(MODES[fault])
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    MAKE[fault](path)


def _link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(exist_ok=True)
    path.symlink_to("elsewhere")


MODES = {"everybody's": 0o777, "another's": 0o755, "nobody's": 0}
MAKE: dict[str, Callable[[Path], object]] = {
    "link": _link,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "file": lambda path: path.write_bytes(bytes(100)),
    "directory": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
}
FAULTS = [*MAKE, *MODES]


@pytest.mark.share(30)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_stands_in_the_place_of_a_file_of_the_tier_ends_no_job(make_cache, tmp_path, caplog, path, fault):
    if fault == "another's" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    make_cache().get_or_compile(document("there"), compiled)
    spoil(tmp_path / "node" / path, fault)
    cache = make_cache()
    assert cache.get_or_compile(document("there"), compiled).neff
    assert cache.get_or_compile(document("new"), compiled).neff
    with pytest.raises(CompileError, match="NCC_EXYZ001"):
        cache.get_or_compile(document("bad"), refuse)
    cache.compile_aside(document("aside"), compiled)
    shown = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(shown) <= 3, "one for each cause"
    with contextlib.suppress(OSError):
        (tmp_path / "node").chmod(0o700)


@pytest.mark.parametrize("fault", ["link", "file", "pipe", "everybody's", "another's"])
def test_without_a_locks_folder_hits_stay_and_one_warning_says_what_to_mend(make_cache, tmp_path, caplog, fault):
    if fault == "another's" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    make_cache().get_or_compile(document("there"), compiled)
    locks = tmp_path / "node/v1/default/graph/locks"
    spoil(locks, fault)
    cache = make_cache()
    assert cache.get_or_compile(document("there"), compiled).source == "disk"
    assert cache.get_or_compile(document("new"), compiled).source == "compile"
    assert make_cache().get_or_compile(document("new"), compiled).source == "disk"
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert str(locks) in warning
    assert "no locks in the node tier" in warning


def test_where_faults_shall_be_errors_a_bad_locks_folder_is_one_before_the_compile_and_hides_no_failure(
    make_cache, tmp_path
):
    make_cache().get_or_compile(document("there"), compiled)
    locks = tmp_path / "node/v1/default/graph/locks"
    spoil(locks, "file")
    compiles = []
    with pytest.raises(ConfigurationError, match="locks"):
        make_cache(on_error="fail").get_or_compile(document("new"), lambda: compiles.append(1) or compiled())
    assert not compiles
    locks.unlink()

    def spoiling() -> Compiled:
        spoil(locks, "file")
        return refuse()

    with pytest.raises(CompileError, match="NCC_EXYZ001"):
        make_cache(on_error="fail").get_or_compile(document("new"), spoiling)


class _BrokenError(Exception):
    """What no file system raises."""


METHODS = [name for name, value in vars(Files).items() if callable(value) and not name.startswith("_")]


@pytest.mark.share(20)
@pytest.mark.parametrize("error", [_BrokenError, MemoryError, RecursionError], ids=lambda error: error.__name__)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "close"])
def test_no_error_of_whatever_sort_reaches_the_job(make_cache, method, error):
    class Failing(Files):
        pass

    def fail(self: Files, *arguments: Any, **options: Any) -> Any:
        raise error

    setattr(Failing, method, fail)
    make_cache().get_or_compile(document("there"), compiled)
    cache = make_cache(files=Failing())
    assert cache.get_or_compile(document("there"), compiled).neff
    assert cache.get_or_compile(document("new"), compiled).neff
    with pytest.raises(CompileError, match="NCC_EXYZ001"):
        cache.get_or_compile(document("bad"), refuse)


@pytest.mark.parametrize("size", [1 << 40, (1 << 53) - 1, 5])
def test_a_size_that_an_entry_claims_takes_no_memory(make_cache, tmp_path, caplog, size):
    make_cache().get_or_compile(document("there"), compiled)
    described = tmp_path / "node" / ENTRY / "entry.json"
    value = json.loads(described.read_bytes())
    value["outputs"][0].update(size=size, stored_size=size)
    described.write_text(json.dumps(value))
    assert make_cache().get_or_compile(document("there"), compiled).source == "compile"
    assert make_cache().get_or_compile(document("there"), compiled).source == "disk", "it was set aside"
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "was set aside" in warning


def test_a_file_full_of_nothing_that_no_memory_could_hold_is_not_read(make_cache, tmp_path, caplog):
    make_cache().get_or_compile(document("there"), compiled)
    described = tmp_path / "node" / ENTRY / "entry.json"
    value = json.loads(described.read_bytes())
    value["outputs"][0].update(size=1 << 40, stored_size=1 << 40)
    described.write_text(json.dumps(value))
    os.truncate(described.with_name("model.neff"), 1 << 40)
    assert make_cache().get_or_compile(document("there"), compiled).source == "compile"
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_program_of_nothing_but_length_is_not_read_though_its_entry_says_the_same(
    make_cache, tmp_path, caplog, monkeypatch
):
    make_cache().get_or_compile(document("there"), compiled)
    described = tmp_path / "node" / ENTRY / "entry.json"
    value = json.loads(described.read_bytes())
    value["outputs"][0].update(size=12 << 30, stored_size=12 << 30)
    described.write_text(json.dumps(value))
    os.truncate(described.with_name("model.neff"), 12 << 30)
    monkeypatch.setattr("client.node.tier.most_held", lambda: 8 << 30)
    assert make_cache().get_or_compile(document("there"), compiled).source == "compile"
    assert "more than half of this machine's memory" in caplog.records[0].message
    assert described.exists(), "no verdict: it may be good on a larger machine"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Real file systems, mounted below the test's folder."""
    mounts: list[Path] = []

    def mount(name: str, *options: str) -> Path:
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        done = subprocess.run([MOUNT, *options, str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        mounts.extend({path}.difference(mounts))
        return path

    yield mount
    for path in reversed(mounts):
        subprocess.run([UMOUNT, "--lazy", str(path)], check=True)


def test_on_a_real_disk_that_is_full_the_job_goes_on(make_cache, mounted, caplog):
    disk = mounted("disk", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs")
    (disk / "node").mkdir(mode=0o700)
    for number in range(3):
        assert make_cache(node="disk/node").get_or_compile(document(f"{number}"), lambda: compiled(size=80_000)).neff
    assert all("No space left" in record.message for record in caplog.records)
    assert not list(disk.rglob("tmp-*")), "nothing half written is left"


def test_on_a_real_disk_that_is_read_only_hits_stay(make_cache, mounted, tmp_path, caplog):
    make_cache().get_or_compile(document("there"), compiled)
    mounted("node", "--bind", str(tmp_path / "node"))
    mounted("node", "-o", "remount,bind,ro")
    cache = make_cache()
    assert cache.get_or_compile(document("there"), compiled).source == "disk"
    assert cache.get_or_compile(document("new"), compiled).source == "compile"
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
