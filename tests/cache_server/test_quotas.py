"""Quotas: a full project is collected, then refused in one sentence; nobody else notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cache_server.database.models import TokenRow
from cache_server.services.jobs import Jobs
from cache_server.services.tokens import token_hash
from tests.cache_server.growth import made, pass_time, publish, set_quota, standing
from tests.cache_server.harness import problem
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import FakeClock, InProcess


def test_a_publish_beyond_the_quota_is_refused_in_one_sentence(either: InProcess) -> None:
    entries = [made(name) for name in "abc"]
    set_quota(either, max_bytes=250)
    publish(either, *entries[:2])
    refused = either.call("PUT", entries[2].blob(), content=entries[2].stored["model.neff"])
    assert problem(refused) == (507, "quota_exceeded")
    assert refused.json()["detail"].startswith(
        "project default holds 200 bytes in 2 entries, its quota is 250 bytes, and nothing can be collected now"
    )
    assert standing(either, *entries) == [True, True, False], "entries in use are not taken for newcomers"
    assert problem(either.call("PUT", entries[2].path, json=entries[2].entry.to_json())) == (507, "quota_exceeded")
    text = either.call("GET", "/metrics").text
    assert 'neff_cache_quota_refusals_total{project="default"} 2.0' in text


def test_a_full_project_is_collected_before_anything_is_refused(either: InProcess) -> None:
    cheap, dear, new = made("a", seconds=1), made("b", seconds=100), made("c")
    set_quota(either, max_entries=2)
    publish(either, cheap, dear)
    pass_time(either)
    publish(either, new)
    assert standing(either, cheap, dear, new) == [False, True, True]


def test_other_projects_are_not_held_up(server: InProcess) -> None:
    mine, theirs = made("a"), made("a", project="other")
    set_quota(server, max_entries=0)
    assert problem(server.call("PUT", mine.blob(), content=b"x")) == (507, "quota_exceeded")
    publish(server, theirs)


def test_what_stands_already_may_be_sent_again_to_a_full_project(server: InProcess) -> None:
    built = made("a")
    publish(server, built)
    set_quota(server, max_entries=1)
    set_quota(server, max_entries=0)
    assert server.publish(built).status_code == 200


def test_an_entry_larger_than_the_quota_does_not_empty_the_project(
    make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    server = make_server(clock=clock)
    small = made("a")
    publish(server, small)
    pass_time(server)
    set_quota(server, max_bytes=150)
    large = made("b", size=151)
    answer = server.call("PUT", large.blob(), content=large.stored["model.neff"])
    assert problem(answer) == (507, "quota_exceeded")
    assert "larger than the quota" in answer.json()["detail"]
    assert standing(server, small) == [True]


def test_nothing_is_removed_for_what_would_not_fit_anyway(
    make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    server = make_server(clock=clock)
    free, pinned, new = made("a"), made("b"), made("c", size=200)
    publish(server, free, pinned)
    server.call("PUT", f"/v1/default/pins/entries/graph/{pinned.entry.key}")
    pass_time(server)
    set_quota(server, max_bytes=250)
    assert problem(server.call("PUT", new.blob(), content=new.stored["model.neff"])) == (507, "quota_exceeded")
    assert standing(server, free, pinned) == [True, True]


def test_a_body_of_unknown_length_is_judged_when_it_is_published(server: InProcess) -> None:
    built = made("a", size=300)
    set_quota(server, max_bytes=200)
    data = built.stored["model.neff"]
    status, _ = server.raw("PUT", built.blob(), [{"type": "http.request", "body": data, "more_body": False}])
    assert status == 201
    assert problem(server.call("PUT", built.path, json=built.entry.to_json())) == (507, "quota_exceeded")
    assert standing(server, built) == [False]


def test_room_for_one_entry_and_ten_at_once_is_no_deadlock(
    make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    """OPEN-024: a small store in which an entry is evicted while another is put."""
    server = make_server(clock=clock)
    first, entries = made("first"), [made(f"e{number}") for number in range(10)]
    publish(server, first)
    pass_time(server)
    set_quota(server, max_entries=1)
    sent = [server.send("PUT", built.blob(), content=built.stored["model.neff"]) for built in entries]
    assert server.call("GET", "/readyz").status_code == 200
    assert {answer.result(HANG_SECONDS).status_code for answer in sent} <= {201, 507}
    sent = [server.send("PUT", built.path, json=built.entry.to_json()) for built in entries]
    statuses = sorted(answer.result(HANG_SECONDS).status_code for answer in sent)
    assert set(statuses) <= {201, 409, 507}
    assert sum(standing(server, first, *entries)) >= 1
    assert server.call("GET", "/readyz").status_code == 200


def test_a_collection_that_runs_elsewhere_is_waited_for_a_little(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, pauses = made("a"), []
    monkeypatch.setattr(server.service.quotas, "_sleep", pauses.append)
    set_quota(server, max_entries=0)
    set_quota(server, max_entries=1)
    publish(server, built)
    with Jobs(server.service.database).hold("collection") as running:
        assert running is not None
        assert problem(server.call("PUT", made("b").blob(), content=b"x")) == (507, "quota_exceeded")
    assert 0 < sum(pauses) <= 1


def test_a_project_is_not_searched_in_vain_for_every_upload(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    now, searched = [0.0], []
    quotas, make_room = server.service.quotas, server.service.collection.make_room
    monkeypatch.setattr(quotas, "_monotonic", lambda: now[0])
    monkeypatch.setattr(server.service.collection, "make_room", lambda *args: searched.append(args) or make_room(*args))
    publish(server, made("a"))
    set_quota(server, max_entries=1)
    for time in (0.0, 1.0, 14.0, 15.0):
        now[0] = time
        server.call("PUT", made("b").blob(), content=b"x")
    assert len(searched) == 2


@pytest.mark.parametrize(("scopes", "pattern"), [("read write lease delete", "*"), ("admin", "default")])
def test_a_tenant_cannot_raise_its_own_quota(server: InProcess, scopes: str, pattern: str) -> None:
    with server.service.database.transaction() as session:
        session.add(
            TokenRow(
                token_hash=token_hash("tenant" * 6),
                label="tenant",
                scopes=scopes,
                project_pattern=pattern,
                kind_pattern="*",
                created=0.0,
                expires=None,
                revoked=None,
            )
        )
    for method, path, body in (
        ("PUT", "/admin/v1/projects/default/quota", {"max_bytes": 1 << 40}),
        ("PUT", "/admin/v1/server/rules", {}),
        ("POST", "/admin/v1/collect", {}),
        ("GET", "/admin/v1/stats", None),
    ):
        assert problem(server.call(method, path, json=body, token="tenant" * 6)) == (403, "forbidden")
    assert server.call("GET", "/v1/default/quota", token="tenant" * 6).status_code == 200


@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("quota", {"max_bytes": -1}),
        ("quota", {"max_bytes": 1 << 63}),
        ("quota", {"max_byte": 1}),
        ("rules", {"oldest": {"neuronx-cc": "newest"}}),
        ("rules", {"keep_versions": 0}),
        ("rules", {"unused_seconds": 0}),
    ],
)
def test_policy_that_means_nothing_is_refused(server: InProcess, where: str, body: dict[str, object]) -> None:
    assert problem(server.call("PUT", f"/admin/v1/projects/default/{where}", json=body)) == (422, "invalid")
    assert server.call("GET", "/admin/v1/policy").json() == {"quotas": {}, "rules": {}, "collection_paused": None}


def test_a_quota_is_shown_and_removed(server: InProcess) -> None:
    publish(server, made("a"))
    set_quota(server, max_bytes=1000)
    assert server.call("GET", "/v1/default/quota").json() == {
        "max_bytes": 1000,
        "max_entries": None,
        "held": {"stored_bytes": 100, "entries": 1},
        "room": {"quota": True, "store": True},
    }
    stats = server.call("GET", "/admin/v1/stats").json()
    assert stats["projects"]["default"]["quota"] == {"max_bytes": 1000, "max_entries": None}
    assert stats["projects"]["default"]["kinds"]["graph"]["entries"] == 1
    set_quota(server)
    assert server.call("GET", "/admin/v1/policy").json()["quotas"] == {}
