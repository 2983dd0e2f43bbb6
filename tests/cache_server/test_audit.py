"""The audit trail: no change without its row, and no row of a change that did not happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cache_server.database.tokens import public_id
from cache_server.services.audit import Audit
from cache_server.services.tokens import token_hash
from cache_server.stores.base import StoreError
from tests.cache_server.growth import made, pass_time, publish, set_quota, set_rules
from tests.cache_server.harness import TOKEN, build, problem

if TYPE_CHECKING:
    import pytest

    from tests.cache_server.harness import InProcess

ME = f"bootstrap ({public_id(token_hash(TOKEN))})"


def rows(server: InProcess, **wanted: Any) -> list[dict[str, Any]]:
    """The rows that are wanted, the oldest first."""
    answer = server.call("GET", "/admin/v1/audit", params=wanted)
    assert answer.status_code == 200, answer.text
    return list(reversed(answer.json()["rows"]))


def last(server: InProcess) -> tuple[str, str, str | None]:
    row = rows(server, limit=1)[0]
    return row["actor"], row["action"], row["project"]


def call(server: InProcess, method: str, path: str, **options: Any) -> int:
    return server.call(method, path, **options).status_code


def test_every_change_of_an_entry_names_who_made_it(either: InProcess) -> None:
    built, damaged = build(), build("b")
    answer = either.publish(built)
    assert answer.status_code == 201
    row = rows(either, action="entry.publish")[0]
    assert (row["actor"], row["project"], row["kind"], row["key"]) == (ME, "default", "graph", built.entry.key)
    assert row["request_id"] == answer.headers["x-request-id"]
    assert row["detail"]["outputs"] == {output.name: output.sha256 for output in built.entry.outputs}
    assert row["time"] == "2027-01-15T08:00:00Z"

    assert either.publish(built).status_code == 200
    assert len(rows(either, action="entry.publish")) == 1, "nothing changed"
    assert call(either, "DELETE", built.path, params={"reason": "poisoned"}) == 204
    assert rows(either, action="entry.delete")[0]["detail"] == {"reason": "poisoned"}
    assert call(either, "DELETE", built.path) == 404
    assert len(rows(either, action="entry.delete")) == 1

    publish(either, damaged)
    either.output_path(damaged).chmod(0o600)
    either.output_path(damaged).write_bytes(b"X" * 400)
    sha = damaged.entry.outputs[0].sha256
    assert either.call("POST", f"{damaged.path}/suspect", json={"sha256": sha}).json() == {"state": "quarantined"}
    row = rows(either, action="entry.quarantine")[0]
    assert (row["actor"], row["detail"]) == (ME, {"damaged": ["model.neff"], "readable": True})


def test_what_the_server_finds_by_itself_is_recorded_as_its_own(either: InProcess) -> None:
    lost, adopted = build(), build("b")
    publish(either, lost, adopted)
    either.output_path(lost).unlink()
    assert either.ask(lost)["state"] == "granted"
    row = rows(either, action="entry.quarantine")[0]
    assert (row["actor"], row["key"]) == ("server", lost.entry.key)
    with either.service.database.transaction() as session:
        session.connection().exec_driver_sql("DELETE FROM entries")
    either.service.sweeping.sweep()
    assert [row["key"] for row in rows(either, action="entry.adopt", actor="server")] == [adopted.entry.key]


def test_every_change_of_policy_is_recorded(either: InProcess) -> None:
    built = build()
    publish(either, built)
    pins = "/v1/default/pins"
    line = f'{{"kind": "graph", "key": "{built.entry.key}"}}'
    changes = [
        ("PUT", f"{pins}/entries/graph/{built.entry.key}", None, "pin.set"),
        ("DELETE", f"{pins}/entries/graph/{built.entry.key}", None, "pin.remove"),
        ("PUT", f"{pins}/labels/{quote('llama 8b', safe='')}", None, "pin.set"),
        ("DELETE", f"{pins}/labels/{quote('llama 8b', safe='')}", None, "pin.remove"),
        ("PUT", "/v1/default/plans/p", line, "plan.write"),
        ("PUT", f"{pins}/plans/p", None, "pin.set"),
        ("DELETE", f"{pins}/plans/p", None, "pin.remove"),
        ("PUT", "/admin/v1/projects/default/quota", {"max_bytes": 1 << 40}, "quotas.set"),
        ("PUT", "/admin/v1/projects/default/rules", {"keep_versions": 2}, "rules.set"),
        ("DELETE", "/admin/v1/projects/default/rules", None, "rules.set"),
    ]
    for method, path, body, action in changes:
        options = {"content": body} if isinstance(body, str) else {} if body is None else {"json": body}
        assert call(either, method, path, **options) in {200, 201, 204}
        assert last(either) == (ME, action, "default"), (method, path)
    server_wide = [
        ("PUT", "/admin/v1/server/quota", {"max_entries": 100}, "quotas.set"),
        ("PUT", "/admin/v1/server/rules", {"keep_versions": 2}, "rules.set"),
        ("DELETE", "/admin/v1/server/rules", None, "rules.set"),
        ("POST", "/admin/v1/collection/pause", {"reason": "a look"}, "collection.pause"),
        ("POST", "/admin/v1/collection/resume", None, "collection.resume"),
        ("POST", "/admin/v1/tokens", {"label": "ci", "grants": [{"scopes": ["read"]}]}, "token.create"),
    ]
    for method, path, body, action in server_wide:
        assert call(either, method, path, **({} if body is None else {"json": body})) in {201, 204}
        assert last(either) == (ME, action, None), (method, path)
    named = rows(either, action="pin.set")
    assert [row["detail"].get("label") for row in named] == [None, "llama 8b", None]
    assert rows(either, action="quotas.set")[0]["detail"]["value"] == {"max_bytes": 1 << 40, "max_entries": None}
    made_token = rows(either, action="token.create")[0]["detail"]
    assert call(either, "DELETE", f"/admin/v1/tokens/{made_token['token']}") == 204
    assert last(either)[:2] == (ME, "token.revoke")
    count = len(rows(either, limit=1000))
    # what changes nothing leaves no row
    for method, path, body, _ in (server_wide[0], server_wide[2], server_wide[4]):
        assert call(either, method, path, **({} if body is None else {"json": body})) == 204
    assert call(either, "DELETE", f"/admin/v1/tokens/{made_token['token']}") == 204
    assert len(rows(either, limit=1000)) == count


def test_a_collection_is_one_row_for_each_project_that_it_took_from(either: InProcess) -> None:
    publish(either, *(made(name) for name in "abc"), made("d", project="other"))
    pass_time(either)
    set_rules(either, unused_seconds=1)
    assert either.call("POST", "/admin/v1/collect", json={}).json()["entries"] == 4
    found = {row["project"]: row for row in rows(either, action="collection.run")}
    assert {project: row["detail"]["entries"] for project, row in found.items()} == {"default": 3, "other": 1}
    assert found["default"]["detail"]["by_reason"] == {"unused": 3}
    assert found["default"]["actor"] == ME
    publish(either, made("e"))
    pass_time(either)
    either.service.collection.run()
    assert rows(either, action="collection.run")[-1]["actor"] == "server"
    # one that takes nothing leaves no row
    either.service.collection.run()
    assert len(rows(either, action="collection.run")) == 3


def test_a_change_that_failed_left_no_row(either: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise StoreError("gone")

    before = rows(either)
    with monkeypatch.context() as patch:
        patch.setattr(type(either.service.store), "create_meta", fail)
        answer = either.call("PUT", "/admin/v1/projects/a/quota", json={"max_bytes": 2})
        assert problem(answer) == (503, "store_unavailable")
    assert rows(either) == before


def test_a_change_whose_row_cannot_be_written_does_not_happen(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no trail")

    built = build()
    publish(server, built)
    with monkeypatch.context() as patch:
        patch.setattr(Audit, "record", fail)
        assert call(server, "DELETE", built.path) == 500
        assert call(server, "PUT", "/v1/default/pins/labels/x") == 500
    assert call(server, "GET", built.artifact) == 200
    assert server.call("GET", "/v1/default/pins").json() == {"pins": []}


def test_the_trail_is_read_by_project_action_actor_time_and_page(either: InProcess) -> None:
    assert {row["action"] for row in rows(either)} == {"token.register"}
    publish(either, build(), build("b", project="other"))
    either.clock.now += 3600  # type: ignore[union-attr]
    set_quota(either, "other", max_entries=9)
    assert [row["action"] for row in rows(either, project="other")] == ["entry.publish", "quotas.set"]
    assert len(rows(either, action="entry")) == 2
    assert rows(either, action="ent") == []
    assert len(rows(either, actor="bootstrap")) == len(rows(either, actor=ME)) == 3
    assert rows(either, actor="boot") == []
    assert [row["action"] for row in rows(either, since="2027-01-15T08:30:00Z")] == ["quotas.set"]
    everything = rows(either)
    pages, before = [], None
    for _ in range(10):
        asked = {"limit": 2} | ({} if before is None else {"before": before})
        page = either.call("GET", "/admin/v1/audit", params=asked).json()
        pages += page["rows"]
        before = page["next"]
        if before is None:
            break
    assert list(reversed(pages)) == everything
    for wrong in ({"since": "yesterday"}, {"limit": 0}, {"limit": 1001}, {"before": 0}, {"project": "A"}):
        assert problem(either.call("GET", "/admin/v1/audit", params=wrong)) == (422, "invalid")


def test_rows_go_when_their_time_is_over(either: InProcess) -> None:
    publish(either, build())
    either.clock.now += 100 * 86400  # type: ignore[union-attr]
    publish(either, build("b"))
    assert either.service.audit.trim(101) == 0
    count = len(rows(either))
    assert either.service.audit.trim(99) == count - 1
    assert [row["key"] for row in rows(either)] == [build("b").entry.key]


def test_a_name_of_any_length_from_an_issuer_is_recorded(either: InProcess) -> None:
    audit = either.service.audit
    with either.service.database.transaction() as session:
        audit.record(session, actor="issuer:" + "x\0\n" * 1000, action="test.name")
    assert rows(either, action="test.name")[0]["actor"].startswith("issuer:x??x??")
