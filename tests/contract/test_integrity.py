"""Check, repair, scrub and rebuild, the same on a disk with SQLite and on a bucket with PostgreSQL."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete

from cache_server import maintenance
from cache_server.database import entries, scrub
from cache_server.database.models import Base, EntryState, LeaseRow
from cache_server.services.scrubbing import Scrubbing
from cache_server.settings import Settings
from client.layout import ENTRY_FILE
from client.names import MAIN_OUTPUT
from tests.cache_server.conftest import clock, make_server, template_database  # noqa: F401 - fixtures
from tests.cache_server.harness import build
from tests.support import s3
from tests.support.postgres import postgres
from tests.support.stored import FilesInBucket, FilesInFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cache_server.harness import Built, InProcess
    from tests.support.stored import StoredFiles


@dataclass
class Place:
    """A server, the settings by which an operator reaches the same data, and what lies in its store."""

    server: InProcess
    settings: Settings
    files: StoredFiles
    start: Callable[[], InProcess] = field(repr=False)

    def output(self, built: Built) -> str:
        return f"{built.address.path}/{built.entry.outputs[0].sha256}"


@pytest.fixture(params=["disk and SQLite", "bucket and PostgreSQL"])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_server: Callable[..., InProcess],  # noqa: F811 - the fixture
) -> Iterator[Place]:
    monkeypatch.setattr("cache_server.services.fsck.SETTLE_SECONDS", 0.0)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    given: dict[str, Any] = {"orphan_seconds": 3600}
    if request.param == "disk and SQLite":
        server = make_server(**given)
        settings = Settings(data_dir=server.service.settings.data_dir, **given)
        yield Place(server, settings, FilesInFolder(server.store_root), lambda: make_server(**given))
        return
    s3.use_credentials(monkeypatch)
    with postgres().new_database() as database:
        given |= {"store": s3.seaweedfs().new_url(), "database": database, "threads": 4}
        server = make_server(**given)
        files = FilesInBucket(given["store"])
        yield Place(server, Settings(data_dir=tmp_path / "data", **given), files, lambda: make_server(**given))
        files.close()
        # the database is dropped: nobody may be connected any more
        if not server.loop.is_closed():
            server.close()


def _found(place: Place) -> list[str]:
    return [finding.invariant for finding in maintenance.check(place.settings, deep=True).findings]


def _harm(place: Place) -> list[str]:
    """Break one thing of each kind; return the invariants that are broken then."""
    server, files = place.server, place.files
    built = {name: build(name) for name in ("torn", "gone", "cut", "flipped", "no row", "deleting", "leased", "sound")}
    for each in built.values():
        assert server.publish(each).status_code == 201
    files.write(f"{built['torn'].address.path}/{ENTRY_FILE}", b"{")
    files.remove(place.output(built["gone"]))
    files.write(place.output(built["cut"]), b"short")
    size = built["flipped"].entry.outputs[0].size
    files.write(place.output(built["flipped"]), bytes(size))
    server.ask(build("other"))
    with server.service.database.transaction() as session:
        entries.remove(session, built["no row"].address)
        entries.mark(session, built["deleting"].address, EntryState.DELETING)
        session.get(LeaseRow, ("default", "graph", build("other").entry.key)).key = built["leased"].entry.key  # type: ignore[union-attr]
    return sorted(
        [
            "entry_unreadable",
            "output_missing",
            "output_size",
            "output_digest",
            "row_missing",
            "removal_unfinished",
            "lease_on_published",
        ]
    )


@pytest.mark.share(1)
def test_each_kind_of_damage_is_seen_beside_the_server_and_repaired(place: Place) -> None:
    broken = _harm(place)
    assert _found(place) == broken
    service = place.server.service
    report = maintenance.check(place.settings, deep=True)
    service.repairing.repair(report.findings, alone=False)
    assert _found(place) == []
    for name in ("sound", "no row", "leased"):
        built = build(name)
        assert place.server.call("GET", built.artifact).content == built.stored[MAIN_OUTPUT]
    for name in ("torn", "gone", "cut", "flipped", "deleting"):
        assert place.server.call("GET", build(name).artifact).status_code == 404
        assert place.server.publish(build(name)).status_code == 201


def test_servers_on_postgresql_need_not_stop_for_a_repair(place: Place) -> None:
    broken = _harm(place)
    if place.settings.bucket_url is None:
        place.server.close()
    before, after = maintenance.repair(place.settings, deep=True)
    assert sorted(finding.invariant for finding in before.findings) == broken
    assert after.findings == []


def test_the_scrub_finds_damage_and_goes_once_around(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "_PAGE", 3)
    # fewer than make the scrub rest: that many in a row are the store's fault
    missing = [build(str(number)) for number in range(3)]
    for built in missing:
        place.server.service.catalogue.add(built.address, built.entry)
    sound, flipped, *others = (build(name) for name in ("sound", "flipped", "a", "b", "c", "d"))
    for built in (sound, flipped, *others):
        place.server.publish(built)
    place.files.write(place.output(flipped), bytes(flipped.entry.outputs[0].size))
    service = place.server.service
    scrubbing = Scrubbing(
        store=service.store,
        database=service.database,
        suspicion=service.suspicion,
        duty=service.duty,
        metrics=service.metrics,
        bytes_per_second=0,
        every_seconds=1,
    )
    # the duty is taken up by the server's own thread where there are several servers
    waited = threading.Event()
    while not service.duty.is_ours():
        waited.wait(0.05)
    scrubbing.request()
    progress = scrubbing.run()
    assert progress is not None
    assert progress.ended is not None
    assert (progress.entries, progress.quarantined) == (len(missing) + 2 + len(others), 0)
    assert scrubbing.suspected() == len(missing) + 1
    monkeypatch.setattr(scrub, "AGAIN_SECONDS", 0.0)  # what looked damaged is looked at again ten minutes later
    for _ in range(2):  # a page each time
        progress = scrubbing.run()
        assert progress is not None
    assert progress.quarantined == len(missing) + 1
    assert place.server.call("GET", sound.artifact).content == sound.stored[MAIN_OUTPUT]
    assert _found(place) == []


def test_a_database_that_was_lost_is_rebuilt_without_loss(place: Place) -> None:
    server = place.server
    every = [build(str(number)) for number in range(5)]
    for built in every:
        server.publish(built)
    server.call("PUT", "/v1/default/pins/labels/llama")
    server.call("PUT", f"/v1/default/pins/entries/graph/{every[0].entry.key}")
    server.call("PUT", "/admin/v1/projects/default/quota", json={"max_entries": 9})
    policy = {name: server.call("GET", "/admin/v1/policy").json()[name] for name in ("quotas", "rules")}
    pins = server.call("GET", "/v1/default/pins").json()
    with server.service.database.transaction() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(delete(table))
    server.close()

    done = maintenance.rebuild(place.settings)
    assert (done.adopted, done.set_aside, done.unreadable) == (5, 0, 0)
    again = place.start()
    for built in every:
        assert again.call("GET", built.artifact).content == built.stored[MAIN_OUTPUT]
    found = again.call("GET", "/admin/v1/policy").json()
    assert {name: found[name] for name in policy} == policy
    assert "resume" in json.dumps(found["collection_paused"])
    assert again.call("GET", "/v1/default/pins").json() == pins
    assert _found(place) == []
    again.close()
