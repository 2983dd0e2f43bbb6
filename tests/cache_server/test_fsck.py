"""`admin fsck`: it must see every kind of damage, and nothing where there is none."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
import typer
from sqlalchemy import update
from typer.testing import CliRunner

from cache_server import maintenance
from cache_server.database import entries
from cache_server.database.models import EntryRow, EntryState, LeaseRow, MetaRow
from cache_server.integrity_cli import fsck, rebuild_index
from cache_server.services.fsck import Fsck
from cache_server.services.invariants import INVARIANTS
from cache_server.settings import Settings
from cache_server.stores.base import MetaName
from client.errors import ConfigurationError
from client.names import MAIN_OUTPUT
from tests.cache_server.harness import build, sha256

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cache_server.services.invariants import Report
    from tests.cache_server.harness import Built, InProcess

pytestmark = pytest.mark.once

DAY = 86400


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_server.services.fsck.SETTLE_SECONDS", 0.0)


def _fsck(server: InProcess, *, deep: bool = True) -> Report:
    return Fsck(server.service.store, server.service.database, orphan_seconds=DAY, deep=deep).run()


def _found(server: InProcess, *, deep: bool = True) -> list[str]:
    return [finding.invariant for finding in _fsck(server, deep=deep).findings]


def _rewrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def _edit_entry(server: InProcess, built: Built, **changes: Any) -> None:
    _rewrite(server.entry_path(built), json.dumps({**built.entry.to_json(), **changes}).encode())


def _forget_row(server: InProcess, built: Built) -> None:
    with server.service.database.transaction() as session:
        entries.remove(session, built.address)


def _set_row(server: InProcess, built: Built, **values: Any) -> None:
    with server.service.database.transaction() as session:
        session.execute(update(EntryRow).where(EntryRow.key == built.entry.key).values(**values))


def _remove_entry_json(server: InProcess, built: Built) -> None:
    server.entry_path(built).unlink()


def _tear_entry_json(server: InProcess, built: Built) -> None:
    _rewrite(server.entry_path(built), b'{"schema": 1, "proj')


def _move_entry_json(server: InProcess, built: Built) -> None:
    _rewrite(server.entry_path(built), json.dumps(build("other").entry.to_json()).encode())


def _lose_output(server: InProcess, built: Built) -> None:
    server.output_path(built).unlink()


def _cut_output(server: InProcess, built: Built) -> None:
    _rewrite(server.output_path(built), built.stored[MAIN_OUTPUT][:-1])


def _flip_output(server: InProcess, built: Built) -> None:
    data = bytearray(built.stored[MAIN_OUTPUT])
    data[0] ^= 1
    _rewrite(server.output_path(built), bytes(data))


def _change_row(server: InProcess, built: Built) -> None:
    _set_row(server, built, document=json.dumps({**built.entry.to_json(), "compile_seconds": 1.0}))


def _break_row(server: InProcess, built: Built) -> None:
    _set_row(server, built, document="{")


def _begin_delete(server: InProcess, built: Built) -> None:
    _set_row(server, built, state=EntryState.DELETING)


def _begin_quarantine(server: InProcess, built: Built) -> None:
    _set_row(server, built, state=EntryState.QUARANTINED)


def _hold_lease(server: InProcess, built: Built) -> None:
    server.ask(build("leased"))
    with server.service.database.transaction() as session:
        session.execute(update(LeaseRow).values(key=built.entry.key))


def _abandon_output(server: InProcess, built: Built) -> None:
    data = b"abandoned"
    server.call("PUT", f"{built.path}/blobs/{sha256(data)}", content=data)
    path = server.entry_path(built).parent / sha256(data)
    os.utime(path, (time.time() - DAY - 60,) * 2)


def _abandon_upload(server: InProcess, built: Built) -> None:
    path = server.store_root / ".uploads" / ("dead" * 8)
    path.write_bytes(b"half")
    os.utime(path, (time.time() - DAY - 60,) * 2)


def _abandon_in_the_future(server: InProcess, built: Built) -> None:
    _abandon_output(server, built)
    path = server.entry_path(built).parent / sha256(b"abandoned")
    os.utime(path, (time.time() + 10 * DAY,) * 2)


BREAKS: dict[str, tuple[str, Callable[[InProcess, Built], None]]] = {
    "entry.json gone": ("row_without_entry", _remove_entry_json),
    "entry.json torn": ("entry_unreadable", _tear_entry_json),
    "entry.json of another key": ("entry_misplaced", _move_entry_json),
    "document of another key": (
        "entry_misplaced",
        lambda server, built: _edit_entry(server, built, key_document={"schema": 1, "kind": "graph"}),
    ),
    "output gone": ("output_missing", _lose_output),
    "output cut": ("output_size", _cut_output),
    "output flipped": ("output_digest", _flip_output),
    "row gone": ("row_missing", _forget_row),
    "row differs": ("row_differs", _change_row),
    "row broken": ("row_unreadable", _break_row),
    "delete begun": ("removal_unfinished", _begin_delete),
    "quarantine begun": ("removal_unfinished", _begin_quarantine),
    "lease held": ("lease_on_published", _hold_lease),
    "output abandoned": ("orphan", _abandon_output),
    "output abandoned under a wrong clock": ("orphan", _abandon_in_the_future),
    "upload abandoned": ("temporary", _abandon_upload),
}


def test_a_sound_store_is_clean(server: InProcess) -> None:
    built, leased = build("a"), build("leased")
    server.publish(built)
    server.upload(build("not published yet"))
    server.ask(leased)
    server.publish(build("gone"))
    server.call("DELETE", build("gone").path)
    report = _fsck(server)
    assert report.findings == []
    assert (report.entries, report.pending) == (1, 2)


@pytest.mark.parametrize("what", BREAKS)
def test_each_kind_of_damage_is_seen_named_and_repaired(server: InProcess, what: str) -> None:
    """OPEN-008 and others: one thing broken at a time, the rest untouched."""
    invariant, harm = BREAKS[what]
    built, other = build("a"), build("untouched")
    for each in (built, other):
        server.publish(each)
    harm(server, built)
    report = _fsck(server)
    # a torn entry.json hides what else is wrong with the key, and nothing may be reported at the other one
    assert [finding.invariant for finding in report.findings] == [invariant]
    assert all(other.entry.key not in finding.where for finding in report.findings)
    server.service.repairing.repair(report.findings, alone=True)
    assert _found(server) == []
    # whatever was repaired, nobody is served wrong bytes, and the key can be used
    answer = server.call("GET", built.artifact)
    assert answer.status_code == 404 or answer.content == built.stored[MAIN_OUTPUT]
    assert server.publish(built).status_code in {200, 201}
    assert server.call("GET", other.artifact).content == other.stored[MAIN_OUTPUT]
    assert _found(server) == []


def test_reading_alone_does_not_see_flipped_bits_and_does_not_pretend_to(server: InProcess) -> None:
    built = build()
    server.publish(built)
    _flip_output(server, built)
    assert _found(server, deep=False) == []
    assert _found(server, deep=True) == ["output_digest"]


def test_files_that_are_not_ours_are_named_and_never_removed(server: InProcess) -> None:
    built = build()
    server.publish(built)
    strange = ["README", "default/notes.txt", "meta/pins/a/1.json", f"{built.address.path}/notes", "quarantine/x"]
    for name in strange:
        path = server.store_root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not ours")
    report = _fsck(server)
    assert sorted(finding.where for finding in report.findings) == sorted(strange)
    assert {finding.invariant for finding in report.findings} == {"unknown_file"}
    server.service.repairing.repair(report.findings, alone=True)
    assert all((server.store_root / name).exists() for name in strange)


def test_what_cannot_be_read_is_said_and_not_judged(server: InProcess) -> None:
    built = build(neff=b"n" * 64)
    server.publish(built)
    path = server.output_path(built)
    path.unlink()
    # a link to itself of the right size: whoever opens it gets an I/O error
    path.symlink_to(path.name)
    report = _fsck(server)
    assert [finding.invariant for finding in report.findings] == ["unreadable"]
    server.service.repairing.repair(report.findings, alone=True)
    assert server.entry_path(built).exists()


def test_gaps_and_losses_of_policy_are_seen(server: InProcess) -> None:
    store = server.service.store
    for revision in (1, 2, 4):
        store.create_meta(MetaName("pins", "a", revision), b"{}")
    store.create_meta(MetaName("pins", "b", 1), b"{")
    with server.service.database.transaction() as session:
        session.add(MetaRow(table_name="pins", row_id="c", revision=3, project=None, document="null", updated=0.0))
    assert _found(server) == ["meta_gap", "meta_lost", "meta_unreadable"]


def test_what_a_server_is_in_the_middle_of_is_not_reported(server: InProcess) -> None:
    built = build()
    server.publish(built)
    _forget_row(server, built)

    def finish(_seconds: float) -> None:
        server.service.catalogue.add(built.address, built.entry)

    report = Fsck(server.service.store, server.service.database, orphan_seconds=DAY, sleep=finish).run()
    assert report.findings == []


def test_every_invariant_has_a_sentence() -> None:
    assert all(sentence.endswith((".", ")")) for sentence in INVARIANTS.values())
    assert {invariant for invariant, _ in BREAKS.values()} <= set(INVARIANTS)


# The command.


def _command(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command("fsck")(fsck)
    app.command("rebuild-index")(rebuild_index)
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return done.exit_code, done.stdout


def test_the_command_runs_beside_a_server_and_says_so_by_its_exit_code(server: InProcess) -> None:
    built = build()
    server.publish(built)
    folder = str(server.service.settings.data_dir)
    status, output = _command("fsck", "--data-dir", folder)
    assert (status, "1 entries" in output, "clean" in output) == (0, True, True)
    _flip_output(server, built)
    assert _command("fsck", "--data-dir", folder)[0] == 0
    status, output = _command("fsck", "--deep", "--json", "--data-dir", folder)
    value = json.loads(output)
    assert (status, value["clean"]) == (1, False)
    assert value["findings"] == [
        {
            "invariant": "output_digest",
            "where": str(built.address),
            "detail": sha256(built.stored[MAIN_OUTPUT]),
        }
    ]
    with pytest.raises(ConfigurationError, match="another neff-cache server"):
        maintenance.repair(Settings(data_dir=server.service.settings.data_dir))
    # nothing was changed by looking
    assert server.output_path(built).exists()


def test_the_command_repairs_when_the_server_is_stopped(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    built, other = build(), build("other")
    server.publish(built)
    server.publish(other)
    _flip_output(server, built)
    folder = str(server.service.settings.data_dir)
    server.close()
    status, output = _command("fsck", "--deep", "--repair", "--data-dir", folder)
    assert status == 0
    assert f"repaired  output_digest: {built.address}" in output
    again = make_server()
    assert again.call("GET", built.artifact).status_code == 404
    assert again.call("GET", other.artifact).status_code == 200


def test_a_lost_database_is_one_finding_and_the_command_does_not_make_one(server: InProcess) -> None:
    for name in "abc":
        server.publish(build(name))
    folder = server.service.settings.data_dir
    server.close()
    for path in folder.glob("cache.db*"):
        path.unlink()
    status, output = _command("fsck", "--json", "--data-dir", str(folder))
    assert status == 1
    assert [finding["invariant"] for finding in json.loads(output)["findings"]] == ["database_missing"]
    assert not (folder / "cache.db").exists()


def test_a_folder_without_a_store_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no store"):
        maintenance.check(Settings(data_dir=tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
