"""Who may write what a job runs. Most of these run as unprivileged users: root sees no permission errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.errors import ConfigurationError
from client.node.ownership import MARKER
from client.node.permissions import Trust, UntrustedError
from tests.client.programs import compiled, document
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

ME, OTHER = 65534, 65533
COMMON_GROUP = 65000

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")

JOB = """
import json, logging, os, sys
from client.cache import Cache
from client.settings import Settings
from tests.client.programs import compiled, document

# import all there is while we still may: the user need not be able to read where Python lies
Cache(Settings()).get_or_compile(document(), compiled)
user, group, groups, *names = sys.argv[1:]
if os.geteuid() == 0:
    os.setgroups(json.loads(groups))
    os.setgid(int(group))
    os.setuid(int(user))
logging.basicConfig(level=logging.WARNING, format="%(message)s")
cache = Cache.from_environment()
sources = []
for name in names:
    sources.append(cache.get_or_compile(document(name), compiled).source)
    cache._parts.memory.remove("graph", document(name).key)
print(json.dumps(sources))
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that other users can reach; pytest's own is private."""
    path = Path(tempfile.mkdtemp(prefix="neff-cache-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def _run(tier: Path, *names: str, user: int = ME, groups: tuple[int, ...] = (), **settings: str) -> tuple[Any, str]:
    """Run a job as ``user``; return where its programs came from, and what it warned of."""
    environment = {"PATH": os.environ["PATH"], "NEURON_CACHE_NODE_DIR": str(tier), "HOME": "/", **settings}
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(user), str(user), json.dumps(groups), *names],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def _tier_of(user: int, path: Path, mode: int = 0o700, group: int | None = None) -> Path:
    path.mkdir()
    if os.geteuid() == 0:
        os.chown(path, user, group if group is not None else user)
    path.chmod(mode)
    return path


def test_a_tier_is_private_by_default(base):
    tier = _tier_of(ME, base / "parent") / "tier"
    assert _run(tier, "a") == (["compile"], "")
    paths = [tier, *tier.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "of-a-version-without-marker"])
def test_a_filled_tier_that_is_read_only_serves_hits_and_costs_a_miss_nothing_else(base, marked):
    tier = _tier_of(ME, base / "tier")
    _run(tier, "a", "b")
    if not marked:
        (tier / "v1" / MARKER).unlink()
    for path in [tier, *tier.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    sources, warnings = _run(tier, "a", "new", "b", "newer")
    assert sources == ["disk", "compile", "disk", "compile"]
    assert warnings.count("\n") == 1
    assert "cannot write in the node tier" in warnings


@needs_root
def test_a_tier_that_root_filled_is_believed(base):
    tier = base / "tier"
    _run(tier, "a", user=0)
    for path in [tier, *tier.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert _run(tier, "a")[0] == ["disk"]


@needs_root
@pytest.mark.parametrize("level", ["tier", "namespace", "entry", "program", "document"])
def test_what_another_user_owns_is_never_run(base, level):
    tier = _tier_of(ME, base / "tier", 0o755)
    _run(tier, "a")
    for path in [tier, *tier.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    key = document("a").key
    namespace = tier / "v1" / "default" / "graph"
    entry = namespace / key[:2] / key
    owned = {"tier": tier, "namespace": namespace, "entry": entry}.get(level, entry / "model.neff")
    os.chown(entry / "entry.json" if level == "document" else owned, OTHER, OTHER)
    sources, warnings = _run(tier, "a", "b", "c")
    assert sources == ["compile"] * 3
    assert warnings.count("\n") == 1
    assert f"belongs to user {OTHER}" in warnings


@needs_root
def test_a_tier_that_cannot_be_entered_costs_one_warning(base):
    tier = _tier_of(OTHER, base / "tier", 0o700)
    sources, warnings = _run(tier, "a", "b")
    assert sources == ["compile"] * 2
    assert warnings.count("\n") == 1
    assert f"user {ME} may not enter {tier} (owner {OTHER}, mode 0700)" in warnings


@needs_root
@pytest.mark.parametrize("made", [True, False], ids=["there", "to-be-made"])
def test_below_a_folder_of_another_user_a_job_has_a_tier_of_its_own_and_hears_which_setting_to_mend(base, made):
    closed = _tier_of(OTHER, base / "closed", 0o700)
    tier, home = closed / "node", _tier_of(ME, base / "home")
    if made:
        _tier_of(ME, tier)
    sources, warnings = _run(tier, "a", HOME=str(home))
    assert sources == ["compile"]
    assert warnings.count("\n") == 1
    for part in (
        "NEURON_CACHE_NODE_DIR",
        str(tier),
        f"{closed} (owner {OTHER}, mode 0700)",
        f"{home}/.cache/neff-cache",
    ):
        assert part in warnings
    assert _run(tier, "a", HOME=str(home))[0] == ["disk"]
    own = home / ".cache" / "neff-cache"
    assert own.stat().st_mode & 0o777 == 0o700
    assert _run(tier, "a", HOME=str(home), NEURON_CACHE_NODE_SHARED="group")[0] == ["disk"]
    assert own.stat().st_mode & 0o777 == 0o700, "it stays private"


@needs_root
def test_without_a_place_of_its_own_the_job_goes_on_after_one_warning(base):
    closed = _tier_of(OTHER, base / "closed", 0o700)
    sources, warnings = _run(closed / "node", "a", "b")
    assert sources == ["compile"] * 2
    assert warnings.count("\n") == 1
    assert "NEURON_CACHE_NODE_DIR" in warnings
    assert f"{closed}/node" in warnings


@pytest.mark.parametrize("level", ["tier", "namespace", "program"])
def test_what_everybody_can_write_is_never_run(base, level):
    tier = _tier_of(ME, base / "tier")
    _run(tier, "a")
    key = document("a").key
    namespace = tier / "v1" / "default" / "graph"
    path = {"tier": tier, "namespace": namespace, "program": namespace / key[:2] / key / "model.neff"}[level]
    path.chmod(path.stat().st_mode | 0o002)
    sources, warnings = _run(tier, "a", "b")
    assert sources == ["compile"] * 2
    assert warnings.count("\n") == 1
    assert "chmod o-w" in warnings


@pytest.mark.parametrize("level", ["tier", "namespace", "entry"])
def test_a_directory_behind_a_symbolic_link_is_refused(base, level):
    parent = _tier_of(ME, base / "parent")
    tier = parent / "tier"
    _run(tier, "a")
    key = document("a").key
    namespace = tier / "v1" / "default" / "graph"
    path = {"tier": tier, "namespace": namespace, "entry": namespace / key[:2] / key}[level]
    real = parent / "real"
    path.rename(real)
    path.symlink_to(real)
    sources, warnings = _run(tier, "a", "b")
    assert sources == ["compile"] * 2
    assert warnings.count("\n") == 1
    assert "symbolic link" in warnings


@needs_root
def test_members_of_the_group_share_a_tier_where_that_is_asked_for(base):
    tier = _tier_of(ME, base / "tier", 0o2770, COMMON_GROUP)
    shared = {"NEURON_CACHE_NODE_SHARED": "group"}
    assert _run(tier, "a", groups=(COMMON_GROUP,), **shared) == (["compile"], "")
    assert _run(tier, "a", "b", user=OTHER, groups=(COMMON_GROUP,), **shared) == (["disk", "compile"], "")
    assert _run(tier, "a", "b", groups=(COMMON_GROUP,), **shared) == (["disk", "disk"], "")
    paths = [path for path in tier.rglob("*") if path.name.endswith((".neff", ".json")) or path.is_dir()]
    assert {path.stat().st_gid for path in paths} == {COMMON_GROUP}


@needs_root
def test_a_group_that_is_not_ours_shares_nothing_with_us(base):
    tier = _tier_of(OTHER, base / "tier", 0o2775, COMMON_GROUP)
    sources, warnings = _run(tier, "a", NEURON_CACHE_NODE_SHARED="group")
    assert sources == ["compile"]
    assert "no member" in warnings


@needs_root
def test_without_sharing_a_group_member_is_not_believed(base):
    tier = _tier_of(ME, base / "tier", 0o2770, COMMON_GROUP)
    _run(tier, "a", groups=(COMMON_GROUP,), NEURON_CACHE_NODE_SHARED="group")
    sources, warnings = _run(tier, "a", user=OTHER, groups=(COMMON_GROUP,))
    assert sources == ["compile"]
    assert "belongs to user" in warnings


def test_a_pipe_in_place_of_a_program_hangs_nobody(base):
    tier = _tier_of(ME, base / "tier")
    _run(tier, "a")
    key = document("a").key
    program = tier / "v1" / "default" / "graph" / key[:2] / key / "model.neff"
    program.unlink()
    os.mkfifo(program)
    assert _run(tier, "a")[0] == ["compile"]


def test_a_job_that_asks_for_it_fails_with_a_refused_tier(make_cache, tmp_path):
    tier = tmp_path / "open"
    tier.mkdir()
    tier.chmod(0o777)
    cache = make_cache(node="open", on_error="fail")
    with pytest.raises(ConfigurationError, match=r"no node tier: .*chmod o-w"):
        cache.get_or_compile(document(), compiled)


def test_a_file_that_its_group_can_write_is_refused_but_such_a_directory_is_not(tmp_path):
    tmp_path.chmod(0o775)
    trust = Trust.of_tier(tmp_path.stat(), shared=False, path="tier")
    path = tmp_path / "model.neff"
    path.touch()
    path.chmod(0o664)
    with pytest.raises(UntrustedError, match="chmod g-w"):
        trust.check(path.stat(), "model.neff")
