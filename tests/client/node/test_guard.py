"""A full, failing or lying file system under a whole job."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Any

import pytest

from client.names import Kind
from client.node.files import Files
from tests.client.programs import compiled, document


class Full(Files):
    """Has no space until something was removed."""

    def __init__(self, code: int, *, for_good: bool = False) -> None:
        self.full = True
        self._code = code
        self._for_good = for_good

    def write(self, descriptor: int, data: bytes) -> None:
        if self.full:
            raise OSError(self._code, os.strerror(self._code))
        super().write(descriptor, data)

    def remove_directory(self, name: str, parent: int) -> None:
        super().remove_directory(name, parent)
        self.full = self._for_good


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_on_a_full_disk_old_entries_make_room(make_cache, code):
    make_cache().get_or_compile(document("old"), compiled)
    files = Full(code)
    cache = make_cache(files=files)
    cache.get_or_compile(document("new"), compiled)
    assert not files.full
    assert make_cache().lookup(Kind.GRAPH, document("new").key) is not None
    assert make_cache().lookup(Kind.GRAPH, document("old").key) is None
    assert cache.statistics.errors == 0


def test_on_a_disk_that_stays_full_the_job_goes_on_with_one_warning(make_cache, caplog):
    cache = make_cache(files=Full(errno.ENOSPC, for_good=True))
    for number in range(3):
        assert cache.get_or_compile(document(f"{number}"), compiled).source == "compile"
        assert cache.get_or_compile(document(f"{number}"), compiled).source == "memory"
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "No space left" in warnings[0]


METHODS = [name for name, value in vars(Files).items() if callable(value) and not name.startswith("_")]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "close"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
def test_no_call_that_fails_reaches_the_job(make_cache, method, code):
    class Failing(Files):
        pass

    def fail(self: Files, *arguments: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    setattr(Failing, method, fail)
    make_cache().get_or_compile(document("there"), compiled)
    cache = make_cache(files=Failing())
    for name in ("there", "new", "newer"):
        found = cache.get_or_compile(document(name), compiled)
        assert found.neff
        assert cache.get_or_compile(document(name), compiled).source == "memory"


def test_damage_is_counted_and_warned_of_once(make_cache, tmp_path, caplog):
    programs = [document(f"{number}") for number in range(3)]
    for program in programs:
        make_cache().get_or_compile(program, compiled)
    for path in tmp_path.rglob("model.neff"):
        os.truncate(path, 10)
    cache = make_cache()
    for program in programs:
        assert cache.get_or_compile(program, compiled).source == "compile"
    assert cache.statistics.errors == 3
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert make_cache().get_or_compile(programs[0], compiled).source == "disk"


def test_locks_that_say_yes_to_everybody_tear_nothing(make_cache):
    class Lying(Files):
        def lock(self, descriptor: int) -> bool:
            return True

    caches = [make_cache(files=Lying()) for _ in range(4)]
    results = {cache.get_or_compile(document(), compiled).neff for cache in caches}
    assert len(results) == 1


def test_a_tier_that_is_removed_under_a_job_is_made_again(make_cache, tmp_path, caplog):
    cache = make_cache()
    cache.get_or_compile(document("a"), compiled)
    shutil.rmtree(tmp_path / "node")
    cache.get_or_compile(document("b"), compiled)
    assert make_cache().get_or_compile(document("b"), compiled).source == "disk"
    assert not caplog.records
