"""Signatures that a project asks for, over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from client.signing.keys import PrivateKey
from client.signing.statements import sign_entry
from client.signing.trust import TrustedKey
from tests.cache_server.harness import Built, build, problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import InProcess

CI, STRANGER = PrivateKey.generate(), PrivateKey.generate()
TRUST = "/v1/default/trust"


def signed(built: Built, key: PrivateKey = CI) -> Built:
    return Built(sign_entry(built.entry, key), built.stored)


def trust(server: InProcess, key: PrivateKey = CI, project: str = "default", **bounds: Any) -> None:
    line = TrustedKey(key.public, "ci", **bounds).line
    answer = server.call("PUT", f"/v1/{project}/trust/keys/{key.public.key_id}", json={"line": line})
    assert answer.status_code == 204, answer.text


def require(server: InProcess, signatures: str = "required") -> None:
    assert server.call("PUT", TRUST, json={"signatures": signatures}).status_code == 204


def test_where_signatures_are_required_nothing_else_is_published(either: InProcess):
    server = either
    trust(server)
    require(server)
    plain, good, foreign = build("a"), signed(build("b")), signed(build("c"), STRANGER)
    assert problem(server.publish(plain)) == (422, "signature_required")
    assert problem(server.publish(foreign)) == (422, "signature_invalid")
    assert server.publish(good).status_code == 201
    for built in (plain, foreign):
        assert server.call("GET", built.path).status_code == 404
    assert server.call("GET", good.path).json()["signature"] == good.entry.signature


def test_the_signed_members_come_back_as_they_were_sent(server: InProcess):
    good = signed(build("a"))
    server.publish(good)
    assert server.call("GET", good.path).json() == good.entry.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"compile_seconds": 1.0},
        {"created": "2026-11-30T00:00:01Z"},
        {"signature": {"alg": "none"}},
        {"signature": {"alg": "ed25519", "key_id": CI.public.key_id, "value": "A" * 86 + "=="}},
    ],
)
def test_a_signature_of_something_else_is_refused(server: InProcess, change: dict[str, Any]):
    trust(server)
    require(server)
    good = signed(build("a"))
    assert problem(server.publish(Built(replace(good.entry, **change), good.stored))) == (422, "signature_invalid")
    assert server.publish(good).status_code == 201


def test_where_signatures_are_optional_a_known_keys_must_still_be_right(server: InProcess):
    trust(server)
    assert server.publish(build("a")).status_code == 201
    assert server.publish(signed(build("b"), STRANGER)).status_code == 201
    good = signed(build("c"))
    forged = Built(replace(good.entry, compile_seconds=1.0), good.stored)
    assert problem(server.publish(forged)) == (422, "signature_invalid")
    assert server.call("POST", f"{TRUST}/keys/{CI.public.key_id}/revoke").status_code == 204
    assert problem(server.publish(good)) == (422, "signature_invalid")


def test_a_key_speaks_for_the_projects_of_its_line_alone(server: InProcess):
    trust(server, projects=("staging",))
    require(server)
    assert problem(server.publish(signed(build("a")))) == (422, "signature_invalid")
    trust(server, projects=("default",))
    assert server.publish(signed(build("a"))).status_code == 201


def test_a_revoked_key_stays_revoked_through_changes_and_a_rebuild(
    make_server: Callable[..., InProcess], server: InProcess
):
    trust(server)
    require(server)
    key = f"{TRUST}/keys/{CI.public.key_id}"
    assert server.call("POST", f"{key}/revoke").status_code == 204
    line = TrustedKey(CI.public, "ci").line
    assert problem(server.call("PUT", key, json={"line": line})) == (422, "invalid")
    assert problem(server.call("DELETE", key)) == (422, "invalid")
    assert server.call("POST", f"{key}/revoke").status_code == 204
    server.close()
    (server.folder / "data" / "cache.db").unlink()
    again = make_server()
    value = again.call("GET", TRUST).json()
    assert value["signatures"] == "required"
    assert "revoked=" in value["keys"][0]
    assert problem(again.publish(signed(build("a")))) == (422, "signature_invalid")


def test_keys_are_listed_removed_and_missed(server: InProcess):
    assert server.call("GET", TRUST).json() == {"signatures": "optional", "keys": []}
    trust(server)
    assert server.call("GET", TRUST).json()["keys"] == [TrustedKey(CI.public, "ci").line]
    key = f"{TRUST}/keys/{CI.public.key_id}"
    assert server.call("DELETE", key).status_code == 204
    assert problem(server.call("DELETE", key)) == (404, "not_found")
    assert problem(server.call("POST", f"{key}/revoke")) == (404, "not_found")
    stranger = TrustedKey(STRANGER.public, "x").line
    assert problem(server.call("PUT", key, json={"line": stranger})) == (422, "invalid")
    assert problem(server.call("PUT", key, json={"line": "ed25519 nonsense x"})) == (422, "invalid")


def test_what_would_not_pass_today_is_listed_and_still_served(server: InProcess):
    plain, good = build("a"), signed(build("b"))
    assert {server.publish(built).status_code for built in (plain, good)} == {201}
    trust(server)
    require(server)
    found = server.call("GET", f"{TRUST}/check").json()["entries"]
    assert [(line["key"], line["name"]) for line in found] == [(plain.entry.key, "signature_required")]
    assert server.call("GET", plain.artifact).status_code == 200


def test_who_is_no_admin_of_a_project_changes_nothing_about_its_trust(make_server: Callable[..., InProcess]):
    server = make_server(anonymous="all")
    for method, path, body in (
        ("PUT", TRUST, {"signatures": "optional"}),
        ("PUT", f"{TRUST}/keys/{CI.public.key_id}", {"line": TrustedKey(CI.public, "ci").line}),
        ("POST", f"{TRUST}/keys/{CI.public.key_id}/revoke", None),
        ("DELETE", f"{TRUST}/keys/{CI.public.key_id}", None),
        ("GET", f"{TRUST}/check", None),
    ):
        options = {} if body is None else {"json": body}
        assert problem(server.call(method, path, token=None, **options)) == (403, "forbidden"), path
    assert server.call("GET", TRUST, token=None).status_code == 200
