"""Values that are right by their type and wrong for what is behind: each is refused once, and poisons nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cache_server.harness import build, problem

if TYPE_CHECKING:
    from tests.cache_server.harness import InProcess

JSON = {"Content-Type": "application/json"}
GRANTS = b'"grants": [{"scopes": ["read"]}]'
LEASE = build().lease
VALUES = [
    # half a surrogate pair in the audit trail made the trail unreadable for good
    ("PUT", "/admin/v1/server/rules", b'{"oldest": {"\\ud800": "1.2"}}'),
    ("PUT", "/admin/v1/server/rules", b'{"oldest": {"a": "\\udfff1.2"}}'),
    ("POST", "/admin/v1/collection/pause", b'{"reason": "\\ud800"}'),
    ("POST", "/admin/v1/tokens", b'{"label": "\\ud800", ' + GRANTS + b"}"),
    ("POST", "/admin/v1/tokens", b'{"label": "\\u0000", ' + GRANTS + b"}"),
    # numbers that no float, no database or no clock holds
    ("POST", "/admin/v1/tokens", b'{"label": "a", "rate": 5e-324, ' + GRANTS + b"}"),
    ("POST", "/admin/v1/tokens", b'{"label": "a", "rate": 1e400, ' + GRANTS + b"}"),
    ("POST", "/admin/v1/tokens", b'{"label": "a", "expires_seconds": NaN, ' + GRANTS + b"}"),
    ("PUT", "/admin/v1/server/quota", b'{"max_bytes": 9007199254740992}'),
    ("PUT", "/admin/v1/server/rules", b'{"unused_seconds": Infinity}'),
    ("POST", "/v1/default/reports", b'{"by_kind": {"graph": {"lookups": 1' + b"0" * 400 + b"}}}"),
    ("POST", "/v1/default/reports", b'{"by_kind": {"graph": {"saved_seconds": 1e308}}}'),
    ("POST", "/v1/default/reports", b'{"by_kind": {}, "keys": ["not a digest"]}'),
    ("POST", "/v1/default/reports", b'{"by_kind": {}, "keys": "a"}'),
    ("POST", LEASE, b'{"holder": {"host": "h", "pid": 99999999999999999999}}'),
    ("POST", LEASE, b'{"holder": {"host": "h", "pid": 1}, "seen_generation": 99999999999999999999}'),
    ("POST", LEASE, b'{"holder": {"host": "h", "pid": 1}, "wait_seconds": NaN}'),
    # what looks like the type that is asked for
    ("POST", LEASE, b'{"holder": {"host": "h", "pid": "1"}}'),
    ("POST", LEASE, b'{"holder": {"host": "h", "pid": 1}, "may_publish": "yes"}'),
    ("POST", LEASE, b'{"holder": {"host": "h", "pid": 1}, "wait_seconds": "1"}'),
    ("POST", "/v1/default/explain", b'{"key_document": {"kind": "graph"}, "limit": "3"}'),
    ("POST", "/v1/default/explain", b'{"key_document": {"kind": "graph"}, "limit": true}'),
    ("POST", "/v1/default/explain", b'{"key_document": {"kind": "graph", "x": 1e400}}'),
    ("POST", "/v1/default/explain", b'{"key_document": ' + b'{"kind": ' * 5000 + b"1" + b"}" * 5001),
    ("POST", "/v1/default/explain", b"[" * 100_000),
    ("POST", "/v1/default/explain", b"\xff\xfe{}"),
    ("POST", "/admin/v1/collect", b'{"dry_run": 1}'),
    # NUL, which PostgreSQL refuses as a value: not the server's fault, and no reason to try again
    ("GET", "/v1/default/entries?label=%00", b""),
    ("GET", "/v1/default/entries?compiler_version=2%00", b""),
    ("GET", "/admin/v1/audit?actor=%00", b""),
    ("GET", "/admin/v1/audit?action=entry%00", b""),
    ("PUT", "/v1/default/pins/labels/a%00b", b""),
]


def test_a_value_that_cannot_be_kept_is_refused_and_shows_up_nowhere(either: InProcess) -> None:
    wrong = {}
    for method, path, body in VALUES:
        answer = either.call(method, path, content=body, headers=JSON if body else {})
        if answer.status_code != 422 or problem(answer) != (422, "invalid"):
            wrong[path, body[:60]] = answer.status_code
    assert wrong == {}
    for path in ("/admin/v1/audit", "/admin/v1/policy", "/admin/v1/stats", "/admin/v1/tokens", "/metrics", "/"):
        assert either.call("GET", path).status_code == 200, path


@pytest.mark.parametrize(
    ("member", "value"),
    [("compile_seconds", 10**400), ("peak_memory_bytes", 1 << 53), ("compile_seconds", True), ("schema", 2)],
)
def test_an_entry_with_a_number_that_no_database_holds_is_refused(server: InProcess, member: str, value: Any) -> None:
    built = build()
    server.upload(built)
    answer = server.call("PUT", built.path, json={**built.entry.to_json(), member: value})
    assert problem(answer) == (422, "invalid")


def test_pages_show_every_entry_once_while_others_come_and_go(either: InProcess) -> None:
    steady = [build(f"steady-{number}", b"%d" % number, log=None) for number in range(8)]
    passing = [build(f"passing-{number}", b"%d" % number, log=None) for number in range(4)]
    for built in [*steady, *passing]:
        assert either.publish(built).status_code == 201
    seen: list[str] = []
    cursor, page = "", 0
    while cursor is not None:
        suffix = f"&cursor={cursor}" if cursor else ""
        answer = either.call("GET", f"/v1/default/entries?limit=3{suffix}").json()
        seen += [entry["key"] for entry in answer["entries"]]
        cursor = answer["next"]
        # one goes, one comes, wherever they stand
        if page < len(passing):
            assert either.call("DELETE", passing[page].path).status_code == 204
            assert either.publish(build(f"late-{page}", b"%d" % page, log=None)).status_code == 201
        page += 1
    assert seen == sorted(seen)
    assert len(set(seen)) == len(seen)
    assert {built.entry.key for built in steady} <= set(seen)
    for bad in ("x", "graph/", f"graph/{'A' * 64}", f"other/{'a' * 64}", f"graph/{'a' * 64}/"):
        assert problem(either.call("GET", f"/v1/default/entries?cursor={bad}")) == (422, "invalid")


def test_a_writer_of_json_that_knows_only_floats_can_say_five(server: InProcess) -> None:
    assert server.call("PUT", "/admin/v1/server/quota", json={"max_entries": 5.0}).status_code == 204
    assert server.call("GET", "/admin/v1/policy").json()["quotas"]["server"]["max_entries"] == 5
    assert problem(server.call("PUT", "/admin/v1/server/quota", json={"max_entries": 5.5})) == (422, "invalid")
