"""An older database beside a newer store: nothing published is lost, and nothing revoked comes back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.http_calls import Caller
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import Server

DAY = 86400


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[Server, Caller]]:
    with running_server(folder) as server:
        yield server, Caller(server.url, server.token, timeout=HANG_SECONDS)


def _admin(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "client.cli", "admin", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _token(caller: Caller, label: str) -> tuple[str, str]:
    body = {"label": label, "grants": [{"scopes": ["read"], "project": "default"}], "expires_seconds": DAY}
    made: dict[str, Any] = caller.call("POST", "/admin/v1/tokens", body).json()
    return made["token"], made["id"]


def _status(caller: Caller, token: str, path: str) -> int:
    return Caller(caller.url, token, timeout=HANG_SECONDS).call("GET", path).status


@pytest.mark.parametrize("how", ["start", pytest.param("rebuild-index", marks=pytest.mark.soak)])
def test_a_restored_backup_loses_no_entry_and_brings_no_revoked_token_back(tmp_path: Path, how: str) -> None:
    before, deleted, after = build("before"), build("deleted"), build("after")
    backup = tmp_path / "backup.db"
    with _serving(tmp_path) as (server, caller):
        assert caller.publish(before).status == 201
        assert caller.publish(deleted).status == 201
        good, _ = _token(caller, "good")
        bad, bad_id = _token(caller, "bad")
        done = _admin("backup", str(backup), "--data-dir", str(server.data))
        assert done.returncode == 0, done.stderr
        # what the backup does not know
        assert caller.call("DELETE", f"/admin/v1/tokens/{bad_id}").status in {200, 204}
        assert _status(caller, bad, before.artifact) == 401
        late, _ = _token(caller, "late")
        assert caller.publish(after).status == 201
        assert caller.call("DELETE", deleted.path).status in {200, 204}
        assert caller.call("PUT", f"/v1/default/pins/entries/graph/{after.entry.key}").status == 201
        data = server.data

    for path in data.glob("cache.db*"):
        path.unlink()
    shutil.copy(backup, data / "cache.db")
    if how == "rebuild-index":
        done = _admin("rebuild-index", "--data-dir", str(data))
        assert done.returncode == 0, done.stderr

    with _serving(tmp_path) as (server, caller):
        # without rebuild-index, the first sweep adopts what the database does not know
        wait_until(lambda: caller.call("GET", after.artifact).status == 200, "the entry is known")
        for built in (before, after):
            assert caller.call("GET", built.artifact).body == built.stored["model.neff"]
        # deleted since the backup: its row is there, its files are not, and that is a miss
        assert caller.call("GET", deleted.artifact).status == 404
        assert _status(caller, good, before.artifact) == 200
        assert _status(caller, late, before.artifact) == 200
        assert _status(caller, bad, before.artifact) == 401
        if how == "rebuild-index":
            assert [pin["key"] for pin in caller.call("GET", "/v1/default/pins").json()["pins"]] == [after.entry.key]
        assert caller.publish(build("more")).status == 201
    if how == "start":
        # the row of what was deleted stays until somebody looks: it never was a hit
        assert "row_without_entry" in _admin("fsck", "--repair", "--data-dir", str(data)).stdout
    done = _admin("fsck", "--data-dir", str(data))
    assert done.returncode == 0, done.stdout


@pytest.mark.soak
def test_a_backup_of_the_store_alone_is_enough_to_serve_again(tmp_path: Path) -> None:
    built = build()
    with _serving(tmp_path) as (server, caller):
        assert caller.publish(built).status == 201
        token, _ = _token(caller, "job")
        revoked, revoked_id = _token(caller, "gone")
        assert caller.call("DELETE", f"/admin/v1/tokens/{revoked_id}").status in {200, 204}
        # taken while the server runs: every file has its name only once it is whole
        copy = tmp_path / "restored" / "data"
        shutil.copytree(
            server.data / "store", copy / "store", ignore=shutil.ignore_patterns(".uploads", ".server.lock")
        )
    done = _admin("rebuild-index", "--data-dir", str(copy))
    assert done.returncode == 0, done.stderr
    with _serving(tmp_path / "restored") as (_, caller):
        assert _status(caller, token, built.artifact) == 200
        assert _status(caller, revoked, built.artifact) == 401
        assert caller.call("GET", built.artifact).body == built.stored["model.neff"]
        # nobody knows any more what was used when: an operator looks first
        assert caller.call("GET", "/admin/v1/policy").json()["collection_paused"] is not None
