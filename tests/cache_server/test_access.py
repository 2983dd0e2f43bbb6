from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import structlog

from cache_server.access import SERVER, Grant, Principal, Scope, anonymous
from cache_server.database.models import TokenRow
from cache_server.database.tokens import public_id
from cache_server.errors import Problem
from cache_server.hosts import own_namespace, with_service_names
from cache_server.services.tokens import NewToken, token_hash
from client.names import Kind
from client.signing.keys import PublicKey
from tests.cache_server.harness import TOKEN, build, problem, sha256
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cache_server.harness import FakeClock, InProcess

_KEY = build().entry.key
_BLOB = sha256(b"x")
_HOLDER = {"holder": {"host": "h", "pid": 1}}
_ENTRY = build().entry.to_json()
_PUBLIC = PublicKey(bytes(range(32)))

# every call, with a body that it takes, the scope it needs, and the status an admin gets on an empty server
CALLS = [
    ("GET", "/v1/{project}/{kind}/artifacts/{key}", None, Scope.READ, 404),
    ("HEAD", "/v1/{project}/{kind}/artifacts/{key}", None, Scope.READ, 404),
    ("GET", "/v1/{project}/{kind}/entries/{key}", None, Scope.READ, 404),
    ("PUT", "/v1/{project}/{kind}/entries/{key}", _ENTRY, Scope.WRITE, 409),
    ("DELETE", "/v1/{project}/{kind}/entries/{key}", None, Scope.DELETE, 404),
    ("GET", "/v1/{project}/{kind}/entries/{key}/blobs/" + _BLOB, None, Scope.READ, 404),
    ("HEAD", "/v1/{project}/{kind}/entries/{key}/blobs/" + _BLOB, None, Scope.READ, 404),
    ("PUT", "/v1/{project}/{kind}/entries/{key}/blobs/" + _BLOB, "x", Scope.WRITE, 201),
    ("POST", "/v1/{project}/{kind}/entries/{key}/suspect", {"sha256": _BLOB}, Scope.READ, 200),
    ("POST", "/v1/{project}/{kind}/leases/{key}", _HOLDER, Scope.READ, 200),
    ("PATCH", "/v1/{project}/{kind}/leases/{key}", {"token": "x"}, Scope.LEASE, 409),
    ("POST", "/v1/{project}/{kind}/leases/{key}/release", {"token": "x"}, Scope.LEASE, 409),
    ("GET", "/v1/{project}/revoked", None, Scope.READ, 200),
    ("POST", "/v1/{project}/lookup", {"keys": []}, Scope.READ, 200),
    ("POST", "/v1/{project}/reports", {"by_kind": {}}, Scope.READ, 204),
    ("GET", "/v1/{project}/plans/p", None, Scope.READ, 404),
    ("PUT", "/v1/{project}/plans/p", "", Scope.WRITE, 201),
    ("GET", "/v1/{project}/trust", None, Scope.READ, 200),
    ("PUT", "/v1/{project}/trust", {"signatures": "optional"}, Scope.ADMIN, 204),
    ("GET", "/v1/{project}/trust/check", None, Scope.ADMIN, 200),
    ("PUT", f"/v1/{{project}}/trust/keys/{_PUBLIC.key_id}", {"line": f"{_PUBLIC} ci"}, Scope.ADMIN, 204),
    ("POST", f"/v1/{{project}}/trust/keys/{_PUBLIC.key_id}/revoke", None, Scope.ADMIN, 404),
    ("DELETE", f"/v1/{{project}}/trust/keys/{_PUBLIC.key_id}", None, Scope.ADMIN, 404),
    ("GET", "/metrics", None, Scope.METRICS, 200),
    ("GET", "/", None, None, 200),
]
_IDS = [f"{method} {path}" for method, path, *_ in CALLS]


def _fill(path: str, project: str = "default", kind: str = "graph", key: str = _KEY) -> str:
    return path.format(project=project, kind=kind, key=key)


def _call(server: InProcess, method: str, path: str, body: object, token: str | None) -> tuple[int, str]:
    options = {"content": body} if isinstance(body, str) else {} if body is None else {"json": body}
    answer = server.call(method, path, token=token, **options)
    if answer.status_code < 400:
        return answer.status_code, ""
    if method == "HEAD":
        return answer.status_code, "head"
    return problem(answer)


def _add_token(
    server: InProcess, scopes: str, *, project: str = "*", kind: str = "*", expires: float | None = None
) -> str:
    token = f"caller-with-scopes-{scopes}-{project}-{kind}"
    with server.service.database.transaction() as session:
        session.add(
            TokenRow(
                token_hash=token_hash(token),
                label=token,
                scopes=scopes,
                project_pattern=project,
                kind_pattern=kind,
                created=0.0,
                expires=expires,
                revoked=None,
            )
        )
    return token


@pytest.mark.parametrize(("method", "path", "body", "scope", "expected"), CALLS, ids=_IDS)
def test_every_call_needs_a_token_and_then_its_scope(
    server: InProcess, *, method: str, path: str, body: object, scope: Scope | None, expected: int
) -> None:
    filled = _fill(path)
    for token in (None, "wrong", "", TOKEN + "x"):
        assert _call(server, method, filled, body, token)[0] == 401
    assert _call(server, method, filled, body, TOKEN)[0] == expected

    other = next(each for each in Scope if each not in {scope, Scope.ADMIN, Scope.FOREIGN})
    lacking = _add_token(server, str(other))
    if scope is not None:
        assert _call(server, method, filled, body, lacking)[0] == 403
        granted = _call(server, method, filled, body, _add_token(server, str(scope)))[0]
        # an admin's first PUT has stored the blob and the plan: the second finds it
        assert granted in {expected, 200}


@pytest.mark.parametrize(
    ("method", "path", "body", "scope"),
    [call[:4] for call in CALLS if "{project}" in call[1]],
    ids=_IDS[: len(CALLS) - 2],
)
@pytest.mark.share(6)
def test_an_outsider_cannot_tell_a_project_from_none(
    server: InProcess, *, method: str, path: str, body: object, scope: Scope | None
) -> None:
    server.publish(build())
    outsider = _add_token(server, "read write lease delete", project="own-*")
    existing = _call(server, method, _fill(path), body, outsider)
    unknown = _call(server, method, _fill(path, project="unknown"), body, outsider)
    assert existing == unknown
    assert existing[0] == 404
    own = _call(server, method, _fill(path, project="own-1"), body, outsider)[0]
    assert own == 403 if scope is Scope.ADMIN else own not in {401, 403}


@pytest.mark.parametrize(("method", "path", "body"), [call[:3] for call in CALLS if "{kind}" in call[1]])
@pytest.mark.parametrize(
    "bad", [{"project": "Bad"}, {"project": "meta"}, {"kind": "other"}, {"key": "0" * 63}, {"key": "G" * 64}]
)
@pytest.mark.share(8)
def test_a_malformed_name_is_refused_before_anything_else_is_said(
    server: InProcess, method: str, path: str, body: object, bad: dict[str, str]
) -> None:
    names = {"project": "own", **bad}
    for token in (TOKEN, _add_token(server, "read", project="own")):
        assert _call(server, method, _fill(path, **names), body, token)[0] == 422


def test_unknown_addresses_and_methods_have_their_own_answers(server: InProcess) -> None:
    for path in ("/v1", "/v1/default", "/v2/default/lookup", "/v1/default/graph/artifacts", "/favicon.ico"):
        assert problem(server.call("GET", path)) == (404, "not_found")
        assert problem(server.call("GET", path, token=None)) == (401, "unauthorized")
    for method, path in (
        ("POST", _fill(CALLS[0][1])),
        ("DELETE", _fill(CALLS[5][1])),
        ("POST", _fill(CALLS[2][1])),
        ("GET", "/v1/default/lookup"),
        ("PUT", "/healthz"),
    ):
        answer = server.call(method, path)
        assert problem(answer) == (405, "method_not_allowed")
        assert answer.headers["allow"]


def test_probes_need_neither_token_nor_host_and_learn_nothing(server: InProcess) -> None:
    for path in ("/healthz", "/readyz"):
        answer = server.call("GET", path, token=None, headers={"Host": "10.0.0.7:8080"})
        assert (answer.status_code, answer.text) == (200, "ok")


def test_a_server_without_its_store_is_not_ready(server: InProcess) -> None:
    (server.store_root / ".uploads").rename(server.store_root / "gone")
    answer = server.call("GET", "/readyz", token=None)
    assert problem(answer) == (503, "not_ready")
    assert str(server.folder) not in answer.text
    assert server.call("GET", "/healthz", token=None).status_code == 200
    (server.store_root / "gone").rename(server.store_root / ".uploads")


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "[::2]:80", "[::1", "[::1]x", "[::1]80"),
        *("localhost:80@evil", "localhost@evil", "evil@localhost", "localhost:@evil", "localhost:80:80"),
        *("localhost:port", "localhost:99999", "localhost:-1", "localhost:80 ", "localhost/evil", "localhost?evil"),
        *("localhost, evil", "evil, localhost", "localhost evil", "localhost..", "localhost%2eevil", "localhost#"),
    ],
)
def test_a_web_page_cannot_reach_the_server_under_its_own_name(server: InProcess, host: str) -> None:
    answer = server.call("GET", "/", headers={"Host": host})
    assert problem(answer) == (421, "wrong_host")
    # the token was not even looked at
    assert problem(server.call("GET", "/", token=None, headers={"Host": host})) == (421, "wrong_host")
    forwarded = {"Host": host, "X-Forwarded-Host": "localhost", "Forwarded": "host=localhost"}
    assert problem(server.call("GET", "/", headers=forwarded)) == (421, "wrong_host")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "localhost.", "localhost.:80", "localhost:", "[::1]:80"]
)
def test_a_name_of_the_server_is_its_own_however_it_is_written(server: InProcess, host: str) -> None:
    assert server.call("GET", "/admin/v1/readiness", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]", "[::1]:8080"])
def test_this_machine_is_reached_by_its_usual_names(server: InProcess, host: str) -> None:
    assert server.call("GET", "/", headers={"Host": host}).status_code == 200


def test_only_the_hosts_on_a_given_list_are_answered(make_server: Callable[..., InProcess]) -> None:
    server = make_server(allowed_hosts=("Cache.Example", "cache"))
    for host, status in (("cache.example:80", 200), ("cache", 200), ("localhost", 200), ("evil.example", 421)):
        assert server.call("GET", "/", headers={"Host": host}).status_code == status


def test_a_request_without_host_is_refused(server: InProcess) -> None:
    status, body = server.raw("GET", "/", [{"type": "http.request"}], {"host": ""})
    assert (status, b"wrong_host" in body) == (421, True)


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic dDp0", "Token " + TOKEN, TOKEN, "Bearer a b"])
def test_a_malformed_authorization_is_no_authorization(server: InProcess, value: str) -> None:
    answer = server.call("GET", "/", token=None, headers={"Authorization": value})
    assert problem(answer) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_revoked_token_stops_at_once_and_stays_revoked(
    server: InProcess, make_server: Callable[..., InProcess]
) -> None:
    assert server.call("GET", "/").status_code == 200
    assert server.service.tokens.revoke(public_id(token_hash(TOKEN)), by=SERVER)
    assert server.call("GET", "/").status_code == 401
    server.close()
    # the next start is told to register the same token
    assert make_server().call("GET", "/").status_code == 401


def test_a_token_ends_with_its_time(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    token = _add_token(server, "read", expires=clock.now + 60)
    assert server.call("GET", "/", token=token).status_code == 200
    clock.now += 61
    server.service.tokens._known.clear()
    assert server.call("GET", "/", token=token).status_code == 401


def test_anonymous_access_is_off_unless_asked_for(make_server: Callable[..., InProcess]) -> None:
    built = build()
    server = make_server(anonymous="read")
    server.publish(built)
    assert server.call("GET", built.artifact, token=None).status_code == 200
    assert problem(server.call("DELETE", built.path, token=None)) == (403, "forbidden")
    assert problem(server.call("GET", built.artifact, token="wrong")) == (401, "unauthorized")
    assert server.send_ask(build("b"), token="wrong").result(HANG_SECONDS).status_code == 401
    asked = server.call("POST", build("b").lease, json=_HOLDER, token=None)
    assert asked.json() == {"state": "denied"}


def test_anonymous_writers_cannot_touch_foreign_entries_or_delete(make_server: Callable[..., InProcess]) -> None:
    server = make_server(anonymous="all")
    built = build()
    assert server.call("PUT", built.blob(), content=built.stored["model.neff"], token=None).status_code == 201
    for method, path in (
        ("PUT", f"/v1/default/foreign/entries/{_KEY}/blobs/{_BLOB}"),
        ("GET", "/v1/default/entries?kind=foreign"),
        ("DELETE", built.path),
        ("GET", "/metrics"),
    ):
        assert problem(server.call(method, path, token=None)) == (403, "forbidden")


@pytest.mark.parametrize(
    ("scopes", "project_pattern", "kind_pattern", "scope", "kind", "allowed"),
    [
        ("read", "*", "*", Scope.READ, Kind.GRAPH, True),
        ("read", "*", "*", Scope.WRITE, Kind.GRAPH, False),
        ("read", "*", "graph", Scope.READ, Kind.EAGER, False),
        ("read", "team-*", "*", Scope.READ, Kind.GRAPH, False),
        ("write delete", "*", "*", Scope.WRITE, Kind.FOREIGN, False),
        ("write delete", "*", "foreign", Scope.WRITE, Kind.FOREIGN, False),
        ("foreign", "*", "*", Scope.WRITE, Kind.FOREIGN, False),
        ("foreign", "*", "foreign", Scope.WRITE, Kind.FOREIGN, True),
        ("foreign", "*", "foreign", Scope.DELETE, Kind.FOREIGN, True),
        ("foreign", "*", "*", Scope.WRITE, Kind.GRAPH, False),
        ("read", "*", "*", Scope.READ, Kind.FOREIGN, False),
        ("read", "*", "foreign", Scope.READ, Kind.FOREIGN, True),
        ("admin", "*", "*", Scope.DELETE, Kind.FOREIGN, True),
        ("admin", "team-*", "*", Scope.READ, Kind.GRAPH, False),
    ],
)
def test_rights_go_as_far_as_their_patterns(
    scopes: str, project_pattern: str, kind_pattern: str, scope: Scope, kind: Kind, *, allowed: bool
) -> None:
    grant = Grant(frozenset(map(Scope, scopes.split())), project_pattern, kind_pattern)
    principal = Principal("p", (grant,))
    assert principal.may(scope, "default", kind) is allowed
    if not allowed:
        with pytest.raises(Problem) as raised:
            principal.require(scope, "default", kind)
        covered = grant.covers_project("default")
        assert raised.value.kind.name == ("forbidden" if covered else "not_found")


def test_there_is_no_caller_without_a_token_by_default() -> None:
    assert anonymous("none") is None


def test_a_log_of_failures_is_not_filled_with_misses(server: InProcess) -> None:
    with structlog.testing.capture_logs() as lines:
        assert server.call("GET", build().artifact).status_code == 404
        assert server.call("GET", "/v1/default/graph/artifacts/short").status_code == 422
    assert [line["status"] for line in lines if line["event"] == "request"] == [422]


def test_a_services_usual_names_are_answered_and_no_name_that_a_stranger_can_own(
    make_server: Callable[..., InProcess],
) -> None:
    server = make_server(allowed_hosts=("neff-cache", "other.team-a.svc.cluster.local"))
    for host, status in {
        "neff-cache": 200,
        "neff-cache:8080": 200,
        "NEFF-CACHE.ml.svc": 200,
        "neff-cache.ml.svc.cluster.local:80": 200,
        "other": 200,
        "other.team-a": 200,
        "other.team-a.svc": 200,
        "localhost:1": 200,
        # a dot at the end means the same name
        "neff-cache.ml.svc.cluster.local.": 200,
        # each of these could be bought, or is another Service
        "neff-cache.dev": 421,
        "neff-cache.com": 421,
        "neff-cache.svc": 421,
        "neff-cache.ml.svc.evil.example": 421,
        "neff-cache.svc.cluster.local": 421,
        "a.neff-cache.ml.svc": 421,
        "neff-cache2.ml.svc": 421,
        "localhost.ml.svc": 421,
        "other.team-b": 421,
    }.items():
        assert server.call("GET", "/", headers={"Host": host}).status_code == status, host


def test_the_servers_own_namespace_is_taken_where_nobody_gets_in_without_a_token(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("dev\n")
    namespace = own_namespace(tmp_path / "namespace")
    assert namespace == "dev"
    names = with_service_names(["neff-cache", "cache.example"], namespace=namespace, anonymous=False)
    assert names == {
        "neff-cache", "neff-cache.dev", "neff-cache.dev.svc", "neff-cache.dev.svc.cluster.local", "cache.example",
    }  # fmt: skip
    assert "neff-cache.dev" not in with_service_names(["neff-cache"], namespace=namespace, anonymous=True)
    assert own_namespace(tmp_path / "none") is None
    (tmp_path / "namespace").write_text("../x")
    assert own_namespace(tmp_path / "namespace") is None


def test_metrics_are_scraped_by_address_with_a_token_and_nothing_else_is(make_server: Callable[..., InProcess]) -> None:
    server = make_server(allowed_hosts=("cache",), anonymous="read")
    wanted = NewToken("prometheus", (Grant(frozenset({Scope.METRICS})),))
    scraper, _ = server.service.tokens.create(wanted, by=SERVER)
    for host in ("10.1.2.3:8080", "10.1.2.3", "[fd00::1]:8080"):
        by_address = {"Host": host}
        assert server.call("GET", "/metrics", token=scraper, headers=by_address).status_code == 200
        assert server.call("GET", "/metrics", token="x" * 40, headers=by_address).status_code == 401
        assert server.call("GET", "/metrics", token=None, headers=by_address).status_code == 403
        assert server.call("GET", "/", headers=by_address).status_code == 421
        assert server.call("GET", "/admin/v1/tokens", headers=by_address).status_code == 421
    for host in ("10.1.2.3.nip.io", "0x7f.1", "evil.example"):
        assert server.call("GET", "/metrics", token=scraper, headers={"Host": host}).status_code == 421


def test_a_name_that_is_refused_stands_in_the_answer_and_moves_no_cursor(server: InProcess) -> None:
    answer = server.call("GET", "/", headers={"Host": "cache.example:8080"})
    assert "cache.example:8080" in answer.json()["detail"]
    assert "--allowed-host" in answer.json()["detail"]
    status, body = server.raw("GET", "/", [{"type": "http.request"}], {"host": "a\x1b[2J\x9b\x7f" + "b" * 300})
    assert status == 421
    detail = json.loads(body)["detail"]
    assert detail.isprintable()
    assert "\\x1b[2J" in detail
    assert len(detail) < 300
