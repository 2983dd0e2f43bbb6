"""Collection as it is carried out: by whom, in which order, beside readers, and through crashes."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from cache_server.access import SERVER
from cache_server.database.models import EntryRow, LeaseRow, LeaseState
from cache_server.database.tokens import public_id
from cache_server.services.jobs import JOB_SECONDS, Jobs
from cache_server.services.tokens import token_hash
from cache_server.stores.base import Blob, StoreError
from client.names import Kind
from tests.cache_server.growth import DAY, collect, made, pass_time, publish, set_quota, set_rules, standing
from tests.cache_server.harness import TOKEN, Built, build, problem
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import FakeClock, InProcess

pytestmark = pytest.mark.once


@pytest.fixture
def timed(make_server: Callable[..., InProcess], clock: FakeClock) -> InProcess:
    return make_server(clock=clock)


def full(server: InProcess, count: int = 4, *, quota: int = 0) -> list[Built]:
    """Entries that may all be collected, the dearest first, and a quota that asks for it."""
    entries = [made(f"e{number}", seconds=100.0 - number) for number in range(count)]
    publish(server, *entries)
    pass_time(server)
    set_quota(server, max_entries=quota)
    return entries


def test_what_goes_is_said_before_and_after_and_counted(either: InProcess) -> None:
    entries = full(either, quota=2)
    said = collect(either, dry_run=True)
    assert standing(either, *entries) == [True] * 4
    done = collect(either)
    assert (said["state"], done["state"]) == ("dry_run", "done")
    assert said["listed"] == done["listed"]
    assert [line["key"] for line in done["listed"]] == [entries[3].entry.key, entries[2].entry.key]
    assert done["by_reason"] == {"quota": {"stored_bytes": 200, "entries": 2}}
    assert standing(either, *entries) == [True, True, False, False]
    assert [bool(either.service.store.files(built.address)) for built in entries] == [True, True, False, False]
    text = either.call("GET", "/metrics").text
    assert 'neff_cache_collected_entries_total{reason="quota"} 2.0' in text
    assert 'neff_cache_collected_bytes_total{reason="quota"} 200.0' in text
    stats = either.call("GET", "/admin/v1/stats").json()
    assert stats["collection"]["last_ended"] is not None


def test_rules_drop_the_unused_and_what_old_compilers_built(either: InProcess) -> None:
    """OPEN-071: a hundred compiler versions over time, collected by age and by version, dry run first."""
    old = [made(f"v{minor}", version=f"2.{minor}.0+ab") for minor in (9, 10, 20, 21)]
    unused, foreign = made("unused", version="2.21.0+ab"), made("odd", version="from source")
    publish(either, *old, unused, foreign)
    pass_time(either, 40 * DAY)
    for built in (*old, foreign):
        either.call("GET", built.artifact)
    either.service.usage.flush()
    pass_time(either)

    set_rules(either, unused_seconds=30 * DAY, keep_versions=3, oldest={"neuronx-cc": "2.20"})
    reasons = {line["key"]: line["reason"] for line in collect(either, dry_run=True)["listed"]}
    assert reasons == {
        old[0].entry.key: "compiler",
        old[1].entry.key: "compiler",
        unused.entry.key: "unused",
    }
    set_rules(either, "projects/default", keep_versions=1)
    reasons = {line["key"]: line["reason"] for line in collect(either)["listed"]}
    assert reasons == {built.entry.key: "compiler" for built in old[:3]}
    assert standing(either, *old, unused, foreign) == [False, False, False, True, True, True]


def test_the_servers_limit_takes_the_least_worth_of_all_projects(timed: InProcess) -> None:
    entries = [made("a", seconds=3), made("b", seconds=1, project="other"), made("c", seconds=2)]
    publish(timed, *entries)
    pass_time(timed)
    assert timed.call("PUT", "/admin/v1/server/quota", json={"max_bytes": 200}).status_code == 204
    found = collect(timed)
    # a tenth of the limit is left free, so a second one goes
    assert [line["key"] for line in found["listed"]] == [entries[1].entry.key, entries[2].entry.key]
    assert {line["reason"] for line in found["listed"]} == {"limit"}


def test_what_a_rule_drops_counts_towards_the_quota(timed: InProcess) -> None:
    old = made("old", seconds=1000, version="1.0")
    publish(timed, old)
    entries = full(timed, 3, quota=3)
    set_rules(timed, keep_versions=1)
    assert [line["reason"] for line in collect(timed)["listed"]] == ["compiler"]
    assert standing(timed, old, *entries) == [False, True, True, True]


def test_what_was_used_or_published_minutes_ago_or_is_leased_stays(either: InProcess) -> None:
    used, leased, plain = full(either, 3)
    either.call("GET", used.artifact)
    with either.service.database.transaction() as session:
        now = either.service.database.now(session)
        row = LeaseRow(project="default", kind="graph", key=leased.entry.key, generation=1, state=LeaseState.HELD)
        row.token_hash, row.holder = "", json.dumps({"host": "h", "pid": 1})
        row.since, row.expires = now, now + 30
        session.add(row)
    assert [line["key"] for line in collect(either)["listed"]] == [plain.entry.key]
    pass_time(either)
    assert collect(either)["entries"] == 2


def test_a_use_that_is_not_written_yet_spares_an_entry(timed: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    used, other = full(timed, 2)
    monkeypatch.setattr(timed.service.usage, "flush", lambda: 0)
    timed.call("GET", used.artifact)
    found = collect(timed)
    assert (found["entries"], found["spared"]) == (1, 1)
    assert standing(timed, used, other) == [True, False]


def test_a_clock_that_ran_ahead_makes_nothing_immortal(timed: InProcess) -> None:
    """OPEN-104: times in the future."""
    ahead, other = made("a", seconds=1), made("b", seconds=100)
    pass_time(timed, 1000 * DAY)
    publish(timed, ahead)
    timed.call("GET", ahead.artifact)
    timed.service.usage.flush()
    pass_time(timed, -1000 * DAY)
    publish(timed, other)
    set_quota(timed, max_entries=1)
    assert collect(timed)["entries"] == 0, "from now on its age counts like that of any other"
    pass_time(timed)
    assert [line["key"] for line in collect(timed)["listed"]] == [ahead.entry.key]


def test_readers_never_see_more_than_a_miss_while_entries_vanish(timed: InProcess) -> None:
    """OPEN-042, 054: evicted between look-up and download."""
    entries = full(timed, 40)
    stop, statuses, wrong = threading.Event(), set(), []

    def read(built: Built) -> None:
        for path in (built.artifact, built.path, built.blob()):
            answer = timed.call("GET", path)
            statuses.add(answer.status_code)
            if answer.status_code == 200 and path != built.path and answer.content != built.stored["model.neff"]:
                wrong.append(path)

    def keep_reading(start: int) -> None:
        number = start
        while not stop.is_set():
            read(entries[number % len(entries)])
            number += 7

    # readers would keep their entries in use: these read without being counted
    timed.service.usage.note = lambda _address: None  # type: ignore[method-assign]
    threads = [threading.Thread(target=keep_reading, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    found = collect(timed)
    stop.set()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert found["entries"] == 40
    for built in entries:
        read(built)
    assert statuses == {200, 404}
    assert not wrong
    # and the key is free for whoever needs it again
    set_quota(timed)
    assert timed.ask(entries[0])["state"] == "granted"
    assert timed.publish(entries[0]).status_code == 201


def test_an_answer_that_has_begun_is_whole_though_its_entry_goes(timed: InProcess) -> None:
    large = made("large", size=5 << 20)
    publish(timed, large)
    pass_time(timed)
    set_quota(timed, max_entries=0)
    opened = timed.service.store.open_output(Blob.of(large.address, large.entry.outputs[0]))
    assert opened is not None
    assert collect(timed)["entries"] == 1
    assert b"".join(opened.chunks()) == large.stored["model.neff"]
    opened.close()


def test_one_server_collects_at_a_time_and_a_dead_one_is_succeeded(either: InProcess) -> None:
    entries = full(either)
    jobs = Jobs(either.service.database)
    with jobs.hold("collection") as running:
        assert running is not None
        assert collect(either)["state"] == "busy"
        # it is not heard of again
        pass_time(either, JOB_SECONDS)
        with jobs.hold("collection") as successor:
            assert successor is not None
            assert not running.renew()
            assert successor.renew()
        with jobs.hold("collection") as third:
            assert third is not None, "the end of the one that lost the job must not free it twice"
    assert collect(either)["entries"] == len(entries)


def test_a_collection_that_lost_its_job_stops(timed: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_server.services.collection._BATCH", 2)
    full(timed)
    renewed: list[bool] = []

    def renew(self: Any) -> bool:
        renewed.append(True)
        return len(renewed) < 2

    monkeypatch.setattr("cache_server.services.jobs.Running.renew", renew)
    found = collect(timed)
    assert (found["state"], found["entries"]) == ("interrupted", 2)


def test_a_stop_of_the_server_ends_a_collection_after_its_entry(timed: InProcess) -> None:
    entries = full(timed)
    collection = timed.service.collection
    finish = timed.service.collection._removal.finish

    def finish_and_stop(*arguments: Any) -> None:
        finish(*arguments)
        collection.stopping = True

    collection._removal.finish = finish_and_stop  # type: ignore[method-assign]
    assert collect(timed)["state"] == "interrupted"
    assert sum(standing(timed, *entries)) == 3


def test_nothing_is_collected_while_an_operator_says_so(either: InProcess) -> None:
    entries = full(either)
    assert either.call("POST", "/admin/v1/collection/pause", json={"reason": "looking"}).status_code == 204
    assert collect(either)["state"] == "paused"
    assert problem(either.call("PUT", made("new").blob(), content=b"x")) == (507, "quota_exceeded")
    paused = either.call("GET", "/admin/v1/policy").json()["collection_paused"]
    assert paused == {"paused": True, "reason": "looking", "by": f"bootstrap ({public_id(token_hash(TOKEN))})"}
    assert standing(either, *entries) == [True] * 4
    assert collect(either, dry_run=True)["entries"] == 4
    assert either.call("POST", "/admin/v1/collection/resume").status_code == 204
    assert collect(either)["entries"] == 4


def test_a_pause_stops_a_collection_that_runs(timed: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_server.services.collection._BATCH", 1)
    entries = full(timed)
    finish = timed.service.collection._removal.finish

    def finish_and_pause(*arguments: Any) -> None:
        finish(*arguments)
        timed.service.collection.pause("enough", by=SERVER)

    timed.service.collection._removal.finish = finish_and_pause  # type: ignore[method-assign]
    assert collect(timed)["state"] == "interrupted"
    assert sum(standing(timed, *entries)) == 3


def test_a_store_that_fails_in_the_middle_leaves_a_miss_that_is_finished_later(
    timed: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = full(timed, 3)
    service = timed.service
    remove, calls = service.collection._removal._store.remove, []

    def fail_third(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise StoreError("the disk went away")
        remove(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(service.collection._removal._store, "remove", fail_third)
        answer = timed.call("POST", "/admin/v1/collect", json={})
        assert problem(answer) == (503, "store_unavailable")
    assert sum(standing(timed, *entries)) == 2
    service.sweeping.recover(alone=True)
    gone = [built for built, stands in zip(entries, standing(timed, *entries), strict=True) if not stands]
    assert [service.store.files(built.address) for built in gone] == [[]]
    assert collect(timed)["entries"] == 2


def test_entries_of_an_older_server_are_judged_by_their_documents(timed: InProcess) -> None:
    old, new = made("a", version="2.1"), made("b", version="2.2")
    publish(timed, old, new)
    with timed.service.database.transaction() as session:
        session.execute(update(EntryRow).values(label=None, compiler=None, compiler_version=None))
    pass_time(timed)
    set_rules(timed, keep_versions=1)
    assert [line["key"] for line in collect(timed)["listed"]] == [old.entry.key]


def test_a_key_that_somebody_works_on_is_left_alone(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock, key_lock_seconds=0.05)
    first, second = full(server, 2)
    with server.service.collection._locks.hold(second.address):
        found = collect(server)
    assert (found["entries"], found["spared"]) == (1, 1)
    assert standing(server, first, second) == [False, True]


def test_collection_goes_on_by_itself(timed: InProcess) -> None:
    entries = full(timed)
    service = timed.service
    task = timed.start(service.collection.keep_collecting(0.01, service.workers, service.duty))
    deadline = threading.Event()
    for _ in range(1000):
        if not any(standing(timed, *entries)):
            break
        deadline.wait(0.01)
    task.cancel()
    assert not any(standing(timed, *entries))


def test_projects_are_collected_one_by_one_on_request(timed: InProcess) -> None:
    mine, theirs = made("a"), made("a", project="other")
    publish(timed, mine, theirs)
    pass_time(timed)
    for project in ("default", "other"):
        set_quota(timed, project, max_entries=0)
    assert collect(timed, project="other")["entries"] == 1
    assert standing(timed, mine, theirs) == [True, False]
    assert problem(timed.call("POST", "/admin/v1/collect", json={"project": "No"})) == (422, "invalid")


def test_a_foreign_entry_is_known_by_its_compilers_version(timed: InProcess) -> None:
    document = {
        "schema": 1,
        "kind": "foreign",
        "layout": "libtorch-lite",
        "name": "a" * 32,
        "compiler_version": "2.20.5+ab",
        "target": "trn2",
    }
    publish(timed, build("f", kind=Kind.FOREIGN, key_document=document))
    found = timed.call("GET", "/v1/default/entries").json()["entries"]
    assert [(item["kind"], item["compiler_version"]) for item in found] == [("foreign", "2.20.5+ab")]
