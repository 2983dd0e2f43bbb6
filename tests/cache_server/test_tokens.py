"""Tokens: what is stored of them, what they open, and that a revoked one never opens anything again."""

from __future__ import annotations

import base64
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from cache_server import maintenance
from cache_server.access import SERVER, Grant, Scope
from cache_server.database import policy
from cache_server.database.models import TokenRow
from cache_server.database.tokens import public_id
from cache_server.grants import check_grant, grant_from_json, grant_to_json, grants_text, parse_grant
from cache_server.services.tokens import token_hash
from cache_server.settings import Settings
from cache_server.stores.base import MetaName, StoreError
from client.errors import WireError
from tests.cache_server.harness import TOKEN, build, problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cache_server.harness import FakeClock, InProcess

WHOAMI = "/v1/-/whoami"
READER = {"label": "reader", "grants": [{"scopes": ["read"], "project": "team-*"}]}


def create(server: InProcess, **body: Any) -> dict[str, Any]:
    answer = server.call("POST", "/admin/v1/tokens", json={**READER, **body})
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return dict(answer.json())


def listed(server: InProcess, token_id: str) -> dict[str, Any]:
    found = server.call("GET", "/admin/v1/tokens").json()["tokens"]
    return next(line for line in found if line["id"] == token_id)


def forget(server: InProcess) -> None:
    """Have every look-up reach the database: what a second that passes does."""
    server.service.tokens._known.clear()


def status(server: InProcess, token: str) -> int:
    forget(server)
    return server.call("GET", WHOAMI, token=token).status_code


def everything_stored(server: InProcess) -> bytes:
    folder = server.service.settings.data_dir
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_token_has_256_random_bits_and_is_stored_as_its_hash_alone(either: InProcess) -> None:
    first, second = create(either), create(either)
    for made in (first, second):
        assert re.fullmatch(r"nc_[A-Za-z0-9_-]{43}", made["token"])
        assert len(base64.urlsafe_b64decode(made["token"].removeprefix("nc_") + "=")) == 32
        assert made["id"] == token_hash(made["token"])[:12]
    assert first["token"] != second["token"]
    with either.service.database.reading() as connection:
        rows = connection.execute(select(TokenRow.__table__)).all()
    stored = everything_stored(either) + repr(rows).encode()
    assert token_hash(first["token"]).encode() in stored
    assert first["token"].encode() not in stored
    assert first["token"] not in either.call("GET", "/admin/v1/tokens").text


def test_a_token_opens_what_its_grants_say(either: InProcess) -> None:
    made = create(
        either,
        grants=[
            {"scopes": ["read"], "project": "team-*"},
            {"scopes": ["read", "write", "lease"], "project": "team-a", "kind": "graph"},
            {"scopes": ["metrics"]},
        ],
    )

    def call(method: str, path: str, **options: Any) -> int:
        return either.call(method, path, token=made["token"], **options).status_code

    assert call("POST", "/v1/team-b/lookup", json={"keys": []}) == 200
    assert call("PUT", "/v1/team-b/plans/p", content=b"") == 403
    assert call("PUT", "/v1/team-a/plans/p", content=b"") == 201
    assert call("PUT", build(project="team-a").blob(), content=b"neff" * 100) == 201
    assert call("PUT", build(project="team-b").blob(), content=b"neff" * 100) == 403
    assert call("POST", "/v1/other/lookup", json={"keys": []}) == 404
    assert call("GET", "/metrics") == 200
    found = either.call("GET", WHOAMI, token=made["token"]).json()
    assert (found["name"], found["token"]) == ("reader", made["id"])
    assert [grant["scopes"] for grant in found["grants"]] == [["read"], ["read", "write", "lease"], ["metrics"]]


def test_a_revoked_token_is_refused_from_then_on(either: InProcess) -> None:
    made = create(either)
    assert status(either, made["token"]) == 200
    assert either.call("DELETE", f"/admin/v1/tokens/{made['id']}").status_code == 204
    assert either.call("GET", WHOAMI, token=made["token"]).status_code == 401
    assert status(either, made["token"]) == 401
    assert listed(either, made["id"])["state"] == "revoked"
    assert either.call("DELETE", f"/admin/v1/tokens/{made['id']}").status_code == 204
    assert problem(either.call("DELETE", "/admin/v1/tokens/000000000000")) == (404, "not_found")
    for malformed in ("x", "%25", made["token"], made["id"] + "0", made["id"].upper() + "%"):
        assert problem(either.call("DELETE", f"/admin/v1/tokens/{malformed}"))[1] == "invalid"


def test_a_token_ends_with_its_life(either: InProcess, clock: FakeClock) -> None:
    made = create(either, expires_seconds=60)
    assert status(either, made["token"]) == 200
    clock.now += 61
    assert status(either, made["token"]) == 401
    assert listed(either, made["id"])["state"] == "expired"


def test_a_token_made_on_one_server_is_known_and_revoked_on_the_others(
    make_server: Callable[..., InProcess], tmp_path: Path
) -> None:
    from tests.support.postgres import postgres  # noqa: PLC0415 - skips where there is none

    with postgres().new_database() as url:
        # a folder is one server's alone, so the second has another; with a bucket they would share it
        one = make_server(database=url, threads=4, folder=tmp_path / "one")
        other = make_server(database=url, threads=4, folder=tmp_path / "other")
        made = create(one)
        assert status(other, made["token"]) == 200
        now = [0.0]
        other.service.tokens._monotonic = lambda: now[0]  # type: ignore[method-assign]
        forget(other)
        assert other.call("GET", WHOAMI, token=made["token"]).status_code == 200
        assert one.call("DELETE", f"/admin/v1/tokens/{made['id']}").status_code == 204
        now[0] = 1.001
        assert other.call("GET", WHOAMI, token=made["token"]).status_code == 401
        one.close()
        other.close()


@pytest.mark.parametrize("how", ["rebuild-index", "start"])
def test_a_lost_database_loses_no_token_and_no_revocation(
    server: InProcess, make_server: Callable[..., InProcess], how: str
) -> None:
    kept, gone = create(server, rate=5), create(server, expires_seconds=1e6)
    server.call("DELETE", f"/admin/v1/tokens/{gone['id']}")
    server.call("DELETE", f"/admin/v1/tokens/{public_id(token_hash(TOKEN))}", token=TOKEN)
    server.close()
    folder = server.service.settings.data_dir
    for path in folder.glob("cache.db*"):
        path.unlink()
    if how == "rebuild-index":
        maintenance.rebuild(Settings(data_dir=folder))
    again = make_server(bootstrap_token="b" * 40)
    assert again.call("GET", WHOAMI, token=kept["token"]).json()["token"] == kept["id"]
    assert again.call("GET", WHOAMI, token=gone["token"]).status_code == 401
    # registered again at every start, unless somebody revoked it
    assert again.call("GET", WHOAMI, token=TOKEN).status_code == 401
    found = again.call("GET", "/admin/v1/tokens", token="b" * 40).json()["tokens"]
    assert {line["id"]: line["rate"] for line in found}[kept["id"]] == 5


def test_a_token_stays_revoked_when_an_older_database_is_put_back(
    server: InProcess, make_server: Callable[..., InProcess], tmp_path: Path
) -> None:
    made = create(server)
    backup = tmp_path / "backup.db"
    with server.service.database.reading() as connection:
        connection.exec_driver_sql(f"VACUUM INTO '{backup}'")
    server.call("DELETE", f"/admin/v1/tokens/{made['id']}")
    server.close()
    folder = server.service.settings.data_dir
    for path in folder.glob("cache.db*"):
        path.unlink()
    shutil.copyfile(backup, folder / "cache.db")
    again = make_server()
    assert again.call("GET", WHOAMI, token=made["token"]).status_code == 401
    assert listed(again, made["id"])["state"] == "revoked"


def test_what_any_revision_revoked_no_later_one_brings_back(server: InProcess) -> None:
    made = create(server)
    digest = token_hash(made["token"])
    server.call("DELETE", f"/admin/v1/tokens/{made['id']}")
    service = server.service
    with service.database.transaction() as session:
        revoked = policy.value(session, policy.TOKENS, digest)
        assert revoked is not None
        # a database that lost the revocation, and goes on from the revision before
        forgetful = "UPDATE meta SET revision = 1, document = json_remove(document, '$.revoked')"
        session.connection().exec_driver_sql(forgetful)
        session.connection().exec_driver_sql("UPDATE tokens SET revoked = NULL")
    with service.database.transaction() as session:
        service.tokens._write(session, digest, {**revoked, "revoked": None, "label": "renamed"})
    assert max(name.revision for name in service.store.meta(policy.TOKENS, digest)) == 3
    assert status(server, made["token"]) == 401
    # a store with such revisions, written by whatever
    later = {"schema": 1, "project": None, "time_seconds": 1.0, "value": {**revoked, "revoked": None}}
    for revision, value in ((4, json.dumps(later)), (5, "broken")):
        assert service.store.create_meta(MetaName(policy.TOKENS, digest, revision), value.encode())
    with service.database.transaction() as session:
        session.connection().exec_driver_sql("DELETE FROM meta")
        session.connection().exec_driver_sql("DELETE FROM tokens WHERE label != 'bootstrap'")
    service.tokens.recover()
    assert status(server, made["token"]) == 401
    assert listed(server, made["id"])["state"] == "revoked"


def test_a_token_that_the_store_did_not_take_opens_nothing(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise StoreError("gone")

    before = server.call("GET", "/admin/v1/tokens").json()
    with monkeypatch.context() as patch:
        patch.setattr(type(server.service.store), "create_meta", fail)
        answer = server.call("POST", "/admin/v1/tokens", json=READER)
        assert problem(answer) == (503, "store_unavailable")
    assert server.call("GET", "/admin/v1/tokens").json() == before


def test_when_a_token_was_last_used_is_known_without_a_write_for_each_request(either: InProcess) -> None:
    made = create(either)
    for _ in range(3):
        assert either.call("GET", WHOAMI, token=made["token"]).status_code == 200
    assert listed(either, made["id"])["last_used"] is None
    either.service.tokens.write_used()
    assert listed(either, made["id"])["last_used"] is not None


def test_tokens_of_the_version_before_go_on(either: InProcess) -> None:
    digest = token_hash("older" * 8)
    with either.service.database.transaction() as session:
        row = TokenRow(token_hash=digest, label="old", scopes="read write", project_pattern="a-*", kind_pattern="graph")
        row.created, row.expires, row.revoked = 1.0, None, None
        session.add(row)
    found = either.call("GET", WHOAMI, token="older" * 8).json()
    assert found["grants"] == [{"scopes": ["read", "write"], "project": "a-*", "kind": "graph"}]
    assert either.service.tokens.revoke(public_id(digest), by=SERVER)
    assert either.call("GET", WHOAMI, token="older" * 8).status_code == 401


def test_servers_of_the_version_before_give_no_more_than_a_token_of_several_grants_has(server: InProcess) -> None:
    one, several = create(server), create(server, grants=[{"scopes": ["read"]}, {"scopes": ["write"], "project": "a"}])
    with server.service.database.reading() as connection:
        rows = {row.token_hash: row for row in connection.execute(select(TokenRow.__table__))}
    old = rows[token_hash(one["token"])]
    assert (old.scopes, old.project_pattern, old.kind_pattern) == ("read", "team-*", "*")
    assert rows[token_hash(several["token"])].scopes == ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"grants": []}, "grants"),
        ({"grants": [{"scopes": []}]}, "scopes"),
        ({"grants": [{"scopes": ["root"]}]}, "scopes"),
        ({"grants": [{"scopes": ["read"], "project": "Team"}]}, "no project or pattern"),
        ({"grants": [{"scopes": ["read"], "project": "[a-z]*"}]}, "no project or pattern"),
        ({"grants": [{"scopes": ["read"], "project": ""}]}, "no project or pattern"),
        ({"grants": [{"scopes": ["read"], "kind": "any"}]}, "no kind"),
        ({"grants": [{"scopes": ["read", "foreign"]}]}, "foreign"),
        ({"grants": [{"scopes": ["write"], "kind": "foreign"}]}, "foreign"),
        ({"grants": [{"scopes": ["metrics"], "project": "team-a"}]}, "whole server"),
        ({"grants": [{"scopes": ["read"], "also": 1}]}, "also"),
        ({"label": ""}, "label"),
        ({"label": "a\nb"}, "printable"),
        ({"label": "x" * 129}, "label"),
        ({"expires_seconds": 0}, "expires_seconds"),
        ({"expires_seconds": 1e300}, "expires_seconds"),
        ({"rate": -1}, "rate"),
    ],
)
@pytest.mark.share(4)
def test_a_token_that_could_not_mean_what_it_says_is_refused(server: InProcess, body: Any, said: str) -> None:
    answer = server.call("POST", "/admin/v1/tokens", json={**READER, **body})
    assert problem(answer) == (422, "invalid")
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("text", "scopes", "project", "kind"),
    [
        ("read", {Scope.READ}, "*", "*"),
        ("read,write,lease@team-a", {Scope.READ, Scope.WRITE, Scope.LEASE}, "team-a", "*"),
        ("read@team-?-*/graph", {Scope.READ}, "team-?-*", "graph"),
        ("read,foreign@*/foreign", {Scope.READ, Scope.FOREIGN}, "*", "foreign"),
        ("metrics", {Scope.METRICS}, "*", "*"),
    ],
)
def test_a_grant_in_words_means_the_same_as_in_json(text: str, scopes: set[Scope], project: str, kind: str) -> None:
    grant = parse_grant(text)
    assert grant == Grant(frozenset(scopes), project, kind)
    assert grant_from_json(grant_to_json(grant)) == grant
    assert parse_grant(grants_text([grant_to_json(grant)])) == grant


@pytest.mark.parametrize("text", ["", "@a", "readwrite", "read@A", "read@a/b", "foreign", "read;write", "metrics@a"])
def test_a_grant_that_means_nothing_is_said_to(text: str) -> None:
    with pytest.raises(WireError):
        parse_grant(text)


def test_a_scope_of_a_later_version_opens_nothing_here() -> None:
    grant = grant_from_json({"scopes": ["read", "teleport"], "project": "*", "kind": "*"})
    assert grant.scopes == {Scope.READ}
    with pytest.raises(WireError):
        check_grant(grant_from_json({"scopes": ["teleport"], "project": "*", "kind": "*"}))
