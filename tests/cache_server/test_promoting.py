"""Promotion from one project to another, over HTTP and over both kinds of store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from client.signing.keys import PrivateKey
from client.signing.statements import Promotion, sign_entry
from client.signing.trust import TrustedKey, TrustList
from client.wire import Entry
from tests.cache_server.harness import Built, build, problem
from tests.support.s3 import seaweedfs, use_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import InProcess

CI, RELEASE = PrivateKey.generate(), PrivateKey.generate()
TIME = "2026-11-30T00:00:00Z"


def staged(name: str = "a", **options: Any) -> Built:
    built = build(name, project="staging", **options)
    return Built(sign_entry(built.entry, CI), built.stored)


def record(entry: Entry, key: PrivateKey | None = RELEASE, target: str = "prod") -> Promotion:
    made = Promotion.of(entry, target, by="somebody@host", time=TIME)
    return made if key is None else made.signed(key)


def promote(server: InProcess, *records: Promotion) -> list[dict[str, Any]]:
    body = {"from": "staging", "records": [each.to_json() for each in records]}
    answer = server.call("POST", "/v1/prod/promotions", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def guard(server: InProcess) -> None:
    """Have ``prod`` ask for signatures: of builders in staging, and of promoters."""
    for key, name, project in ((CI, "ci", "staging"), (RELEASE, "release", "prod")):
        line = TrustedKey(key.public, name, projects=(project,)).line
        assert server.call("PUT", f"/v1/prod/trust/keys/{key.public.key_id}", json={"line": line}).status_code == 204
    assert server.call("PUT", "/v1/prod/trust", json={"signatures": "required"}).status_code == 204


def in_prod(built: Built) -> Built:
    return Built(replace(built.entry, project="prod"), built.stored)


@pytest.fixture(params=["folder", "s3"])
def stored(
    request: pytest.FixtureRequest, make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> InProcess:
    if request.param == "folder":
        return make_server()
    use_credentials(monkeypatch)
    return make_server(store=seaweedfs().new_url(), threads=4)


def test_a_promoted_entry_is_whole_and_says_who_let_it_in(stored: InProcess):
    server = stored
    guard(server)
    neff = b"neff" * 4000
    built = staged(neff=neff, packed=zstandard.ZstdCompressor().compress(neff))
    assert server.publish(built).status_code == 201
    made = record(built.entry)
    assert promote(server, made) == [{"kind": "graph", "key": built.entry.key, "state": "promoted"}]
    copy = in_prod(built)
    found = Entry.from_json(server.call("GET", copy.path).json())
    assert found == replace(built.entry, project="prod", promotions=(made.to_json(),))
    builders, promoters = (
        TrustedKey(key.public, name, projects=(project,))
        for key, name, project in ((CI, "ci", "staging"), (RELEASE, "release", "prod"))
    )
    assert TrustList([builders, promoters]).check(found).name == "ci"
    assert server.call("GET", copy.artifact).content == neff
    assert server.call("GET", copy.blob("compile.log")).content == b"compiled"
    assert promote(server, made)[0]["state"] == "present"
    # the copy stands by itself
    assert server.call("DELETE", built.path).status_code == 204
    assert server.call("GET", copy.artifact).content == neff


def test_a_promotion_outlives_database_and_sweep(make_server: Callable[..., InProcess], server: InProcess):
    built = staged()
    server.publish(built)
    promote(server, record(built.entry))
    server.service.sweeping.sweep()
    expected = server.call("GET", in_prod(built).path).json()
    server.close()
    (server.folder / "data" / "cache.db").unlink()
    again = make_server()
    again.service.rebuilding.rebuild()
    assert again.call("GET", in_prod(built).path).json() == expected


def test_what_is_refused_leaves_nothing_behind(server: InProcess):
    guard(server)
    plain = build("plain", project="staging")
    foreign = build("foreign", project="staging")
    foreign = Built(sign_entry(foreign.entry, PrivateKey.generate()), foreign.stored)
    damaged, good = staged("damaged"), staged("good")
    for built in (plain, foreign, damaged, good):
        assert server.publish(built).status_code == 201
    path = server.output_path(damaged, "compile.log")
    path.chmod(0o600)
    path.write_bytes(b"comp1led")
    absent = staged("absent")
    results = promote(
        server,
        record(plain.entry),
        record(foreign.entry),
        record(damaged.entry),
        record(absent.entry),
        record(replace(good.entry, compile_seconds=1.0)),
        record(good.entry, CI),
        record(good.entry, None),
    )
    assert [(line["state"], line["name"]) for line in results] == [
        ("refused", "signature_required"),
        ("refused", "signature_invalid"),
        ("refused", "wrong_digest"),
        ("refused", "not_found"),
        ("refused", "other_entry"),
        ("refused", "signature_invalid"),
        ("refused", "signature_required"),
    ]
    assert not [name for name in server.files() if name.startswith("prod/")]
    # the damaged one is set aside, so that it is built anew
    assert server.call("GET", damaged.path).status_code == 404


def test_another_build_that_stands_in_the_target_stays(server: InProcess):
    built, other = staged(neff=b"one" * 99), build("a", neff=b"two" * 99, project="prod")
    for each in (built, other):
        assert server.publish(each).status_code == 201
    result = promote(server, record(built.entry))[0]
    assert (result["state"], result["name"]) == ("refused", "other_entry")
    assert server.call("GET", other.artifact).content == b"two" * 99


def test_a_full_project_takes_no_promotion(server: InProcess):
    built = staged()
    server.publish(built)
    server.call("PUT", "/admin/v1/projects/prod/quota", json={"max_bytes": 100})
    assert promote(server, record(built.entry))[0]["name"] == "quota_exceeded"
    assert not [name for name in server.files() if name.startswith("prod/")]


def test_a_record_for_other_projects_than_the_address_is_refused_whole(server: InProcess):
    built = staged()
    server.publish(built)
    for body in (
        {"from": "staging", "records": [record(built.entry, target="prod-eu").to_json()]},
        {"from": "dev", "records": [record(built.entry).to_json()]},
        {"from": "staging", "records": []},
        {"from": "staging", "records": [{}]},
        {"from": "../etc", "records": [record(built.entry).to_json()]},
    ):
        assert problem(server.call("POST", "/v1/prod/promotions", json=body)) == (422, "invalid")
    assert not [name for name in server.files() if name.startswith("prod/")]


@pytest.mark.parametrize(
    ("grants", "status"),
    [
        ([("read", "staging"), ("write", "prod")], 200),
        ([("write", "prod")], 404),
        ([("read", "staging")], 404),
        ([("read write lease delete", "staging"), ("read", "prod")], 403),
        ([("write", "staging"), ("write", "prod")], 403),
        ([("read", "staging"), ("write", "prod/eager")], 403),
        ([("read", "staging/eager"), ("write", "prod")], 403),
        ([("admin", "elsewhere")], 404),
    ],
)
def test_promoting_takes_read_on_the_one_and_write_on_the_other(
    server: InProcess, grants: list[tuple[str, str]], status: int
):
    built = staged()
    server.publish(built)
    wanted = []
    for scopes, place in grants:
        project, _, kind = place.partition("/")
        wanted.append({"scopes": scopes.split(), "project": project, **({"kind": kind} if kind else {})})
    made = server.call("POST", "/admin/v1/tokens", json={"label": "t", "grants": wanted})
    assert made.status_code == 201, made.text
    body = {"from": "staging", "records": [record(built.entry).to_json()]}
    answer = server.call("POST", "/v1/prod/promotions", json=body, token=made.json()["token"])
    assert answer.status_code == status, answer.text
    assert (server.call("GET", in_prod(built).path).status_code == 200) is (status == 200)


def test_the_audit_trail_says_who_promoted_what_and_from_where(server: InProcess):
    built = staged()
    server.publish(built)
    promote(server, record(built.entry))
    page = server.call("GET", "/admin/v1/audit?action=entry.promote").json()
    rows = next(value for value in page.values() if isinstance(value, list))
    assert [(row["project"], row["key"], row["detail"]["from"]) for row in rows] == [
        ("prod", built.entry.key, "staging")
    ]
