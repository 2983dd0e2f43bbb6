"""Who may call what: every route, by every kind of token, on its own project, on another's and on one that is none.

The expected status is derived from the table of routes and the table of callers below, by rules that are written here
once more, and every cell is asked of a real server. With `-s` the answers are shown as a table.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from client.key import key_of
from client.names import MAIN_OUTPUT, Kind
from tests.cache_server.harness import build, sha256
from tests.fakes.waiting import HANG_SECONDS
from tests.support.http_calls import Caller
from tests.support.postgres import postgres
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cache_server.harness import Built
    from tests.support.servers import Server

OWN, OTHER, UNKNOWN = "team-own", "team-other", "team-unknown"

FOREIGN_DOCUMENT = {
    "schema": 1,
    "kind": "foreign",
    "layout": "npc",
    "name": "neuronxcc-2.21.33363.0+82129205/MODULE_11223344556677889900+abcdef01",
    "compiler_version": "2.21.33363.0+82129205",
    "target": "trn2",
}
KEY, FOREIGN_KEY = build().entry.key, key_of(FOREIGN_DOCUMENT)
DIGEST = sha256(build().stored[MAIN_OUTPUT])
HOLDER = {"holder": {"host": "h", "pid": 1}}
LINE = json.dumps({"kind": "graph", "key": KEY})


class Route(NamedTuple):
    """A call, and all scopes that it needs.

    ``ok``: its statuses where the project holds what it is about; ``empty``: where it holds nothing.
    """

    method: str
    path: str
    scope: str
    ok: set[int]
    empty: set[int] | None = None
    body: Any = None
    kind: str | None = None
    before: str | None = None
    """The method that an admin calls it with first, so that there is something to take away."""

    @property
    def name(self) -> str:
        return (
            f"{self.method} {self.path}".replace(KEY, "{key}").replace(FOREIGN_KEY, "{key}").replace(DIGEST, "{sha256}")
        )


_GRAPH = f"/v1/{{project}}/graph/entries/{KEY}"
_ARTIFACT = f"/v1/{{project}}/graph/artifacts/{KEY}"
_BLOB = f"{_GRAPH}/blobs/{DIGEST}"
_LEASE = f"/v1/{{project}}/graph/leases/{KEY}"
_FOREIGN = f"/v1/{{project}}/foreign/entries/{FOREIGN_KEY}"
_FOREIGN_BLOB = f"{_FOREIGN}/blobs/{DIGEST}"
_PIN = f"/v1/{{project}}/pins/entries/graph/{KEY}"
_ENTRY = "entry"
"""Stands for the entry's own JSON, which names its project."""
_BYTES = build().stored[MAIN_OUTPUT]

SOMETHING = "some right"
ANYBODY = "any token"

PROJECT_ROUTES = [
    Route("GET", _ARTIFACT, "read", {200}, {404}, kind="graph"),
    Route("HEAD", _ARTIFACT, "read", {200}, {404}, kind="graph"),
    Route("GET", _GRAPH, "read", {200}, {404}, kind="graph"),
    Route("PUT", _GRAPH, "write", {200, 201}, {409}, _ENTRY, kind="graph"),
    Route("GET", _BLOB, "read", {200}, {404}, kind="graph"),
    Route("HEAD", _BLOB, "read", {200}, {404}, kind="graph"),
    Route("PUT", _BLOB, "write", {200}, {201}, _BYTES, kind="graph"),
    Route("POST", f"{_GRAPH}/suspect", "read", {200}, {200}, {"sha256": DIGEST}, kind="graph"),
    Route("POST", _LEASE, "read", {200}, {200}, HOLDER, kind="graph"),
    Route("PATCH", _LEASE, "lease", {409}, {409}, {"token": "x"}, kind="graph"),
    Route("POST", f"{_LEASE}/release", "lease", {409}, {409}, {"token": "x"}, kind="graph"),
    Route("GET", "/v1/{project}/revoked", "read", {200}),
    Route("GET", "/v1/{project}/entries", "read", {200}),
    Route("POST", "/v1/{project}/lookup", "read", {200}, None, {"keys": [{"kind": "graph", "key": KEY}]}),
    Route("POST", "/v1/{project}/fetch", "read", {200}, None, {"keys": [{"kind": "graph", "key": KEY}]}),
    Route("POST", "/v1/{project}/explain", "read", {200}, None, {"key_document": build().entry.key_document}),
    Route("POST", "/v1/{project}/reports", "read", {204}, None, {"by_kind": {}}),
    Route("PUT", "/v1/{project}/plans/p", "write", {200, 201}, {201}, LINE),
    Route("GET", "/v1/{project}/plans/p", "read", {200}, {404}),
    Route("GET", "/v1/{project}/pins", "read", {200}),
    Route("PUT", _PIN, "write", {200, 201}, {404}, kind="graph"),
    Route("DELETE", _PIN, "write", {204}, {404}, kind="graph", before="PUT"),
    Route("PUT", "/v1/{project}/pins/labels/l", "write", {200, 201}),
    Route("DELETE", "/v1/{project}/pins/labels/l", "write", {204}, {404}, before="PUT"),
    Route("PUT", "/v1/{project}/pins/plans/p", "write", {200, 201}, {404}),
    Route("DELETE", "/v1/{project}/pins/plans/p", "write", {204}, {404}, before="PUT"),
    Route("GET", "/v1/{project}/quota", "read", {200}),
    Route("GET", "/v1/{project}/trust", "read", {200}),
    Route("PUT", "/v1/{project}/trust", "admin", {204}, None, {"signatures": "optional"}),
    Route("GET", "/v1/{project}/trust/check", "admin", {200}),
    Route("PUT", "/v1/{project}/trust/keys/0123456789abcdef", "admin", {422}, None, {"line": "no key"}),
    Route("POST", "/v1/{project}/trust/keys/0123456789abcdef/revoke", "admin", {404}, None),
    Route("DELETE", "/v1/{project}/trust/keys/0123456789abcdef", "admin", {404}),
    Route("POST", "/v1/{project}/promotions", "read write", {422}, None, {"from": "{project}", "records": [{}]}),
    Route("GET", f"/v1/{{project}}/foreign/artifacts/{FOREIGN_KEY}", "read", {200}, {404}, kind="foreign"),
    Route("PUT", _FOREIGN_BLOB, "foreign", {200, 201}, {201}, _BYTES, kind="foreign"),
    Route("PUT", _FOREIGN, "foreign", {200, 201}, {409}, _ENTRY, kind="foreign"),
    Route("DELETE", _FOREIGN, "foreign", {204}, {404}, kind="foreign", before="PUT"),
    Route("POST", f"/v1/{{project}}/foreign/leases/{FOREIGN_KEY}", "read", {422}, {422}, HOLDER, kind="foreign"),
    Route("DELETE", _GRAPH, "delete", {204}, {404}, kind="graph", before="PUT"),
    # no route, or not by this method: an outsider cannot tell that either
    Route("POST", _ARTIFACT, SOMETHING, {405}),
    Route("PURGE", _GRAPH, SOMETHING, {405}),
    Route("OPTIONS", "/v1/{project}/lookup", SOMETHING, {405}),
    Route("GET", "/v1/{project}/lookup", SOMETHING, {405}),
    Route("GET", "/v1/{project}/no/such/route", SOMETHING, {404}),
]

SERVER_ROUTES = [
    Route("GET", "/", ANYBODY, {200}),
    Route("GET", "/v1/-/whoami", ANYBODY, {200}),
    Route("GET", "/metrics", "metrics", {200}),
    Route("GET", "/admin/v1/policy", "admin", {200}),
    Route("GET", "/admin/v1/stats", "admin", {200}),
    Route("GET", "/admin/v1/readiness", "admin", {200}),
    Route("GET", "/admin/v1/audit", "admin", {200}),
    Route("PUT", f"/admin/v1/projects/{OWN}/quota", "admin", {204}, None, {"max_entries": 1000}),
    Route("PUT", f"/admin/v1/projects/{OWN}/rules", "admin", {204}, None, {"keep_versions": 9}),
    Route("DELETE", f"/admin/v1/projects/{OWN}/rules", "admin", {204}),
    Route("PUT", "/admin/v1/server/quota", "admin", {204}, None, {"max_entries": 1_000_000}),
    Route("PUT", "/admin/v1/server/rules", "admin", {204}, None, {"keep_versions": 9}),
    Route("DELETE", "/admin/v1/server/rules", "admin", {204}),
    Route("POST", "/admin/v1/collect", "admin", {200}, None, {"dry_run": True}),
    Route("POST", "/admin/v1/collection/pause", "admin", {204}, None, {"reason": "a look"}),
    Route("POST", "/admin/v1/collection/resume", "admin", {204}),
    Route("GET", "/admin/v1/scrub", "admin", {200}),
    Route("POST", "/admin/v1/scrub", "admin", {202}),
    Route("GET", "/admin/v1/tokens", "admin", {200}),
    Route("POST", "/admin/v1/tokens", "admin", {201}, None, {"label": "made", "grants": [{"scopes": ["read"]}]}),
    Route("DELETE", "/admin/v1/tokens/000000000000", "admin", {404}),
]


class Rights(NamedTuple):
    """A caller, by the grant of its token."""

    name: str
    scopes: frozenset[str]
    project: str = "*"
    kind: str = "*"


CALLERS = [
    *(Rights(scope, frozenset({scope}), OWN) for scope in ("read", "write", "lease", "delete")),
    Rights("foreign", frozenset({"foreign"}), OWN, "foreign"),
    Rights("all but foreign", frozenset({"read", "write", "lease", "delete"}), OWN),
    Rights("metrics", frozenset({"metrics"})),
    Rights("project admin", frozenset({"admin"}), OWN),
    Rights("server admin", frozenset({"admin"})),
]


def expected(route: Route, rights: Rights, project: str) -> set[int]:
    """The rules of docs/tokens.md, in the order in which they hold."""
    is_admin = "admin" in rights.scopes
    if "{project}" not in route.path:
        everywhere = rights.project == "*" and (is_admin or route.scope in rights.scopes)
        return route.ok if everywhere or route.scope == ANYBODY else {403}
    if rights.project not in {"*", project} or rights.scopes == {"metrics"}:
        return {404}
    empty = route.ok if route.empty is None else route.empty
    allowed = empty if project == UNKNOWN else route.ok
    if is_admin or route.scope == SOMETHING:
        return allowed
    covered = route.kind in {None, rights.kind} or (rights.kind == "*" and route.kind != "foreign")
    return allowed if rights.scopes.issuperset(route.scope.split()) and covered else {403}


@dataclass
class World:
    """A server with an entry in two projects, and a token for each caller."""

    server: Server
    admin: Caller
    callers: dict[str, Caller] = field(default_factory=dict)
    dead: dict[str, Caller] = field(default_factory=dict)
    _fresh: Iterator[int] = field(default_factory=itertools.count)

    def caller(self, token: str) -> Caller:
        return Caller(self.server.url, token, keep=True)

    def token(self, rights: Rights, **body: Any) -> dict[str, Any]:
        grant = {"scopes": sorted(rights.scopes), "project": rights.project, "kind": rights.kind}
        answer = self.admin.call("POST", "/admin/v1/tokens", {"label": rights.name, "grants": [grant], **body})
        assert answer.status == 201, answer.body
        return answer.json()

    def fresh(self) -> str:
        """A project that nobody has written to."""
        return f"team-fresh-{next(self._fresh)}"

    def restore(self, project: str) -> None:
        """Have the project hold what the routes are about."""
        for built in (entry(project), entry(project, foreign=True)):
            assert self.admin.publish(built).status in {200, 201}
        assert self.admin.call("PUT", f"/v1/{project}/plans/p", LINE).status in {200, 201}

    def ask(self, caller: Caller, route: Route, project: str) -> int:
        body = route.body
        if body is _ENTRY:
            body = entry(project, foreign=route.kind == "foreign").entry.to_json()
        elif isinstance(body, dict):
            body = json.loads(json.dumps(body).replace("{project}", project))
        headers = {"Content-Type": "application/json"} if isinstance(body, dict) else {}
        return caller.call(route.method, route.path.format(project=project), body, headers).status


def entry(project: str, *, foreign: bool = False) -> Built:
    if foreign:
        return build(project=project, kind=Kind.FOREIGN, key_document=FOREIGN_DOCUMENT, log=None)
    return build(project=project, log=None)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("access")
    if request.param == "sqlite":
        with running_server(folder) as server, populated(server) as world:
            yield world
        return
    with (
        postgres().new_database() as url,
        running_server(folder, "--database", url) as server,
        populated(server) as world,
    ):
        yield world


@contextlib.contextmanager
def populated(server: Server) -> Iterator[World]:
    world = World(server, Caller(server.url, server.token, keep=True))
    for project in (OWN, OTHER):
        world.restore(project)
    for rights in CALLERS:
        world.callers[rights.name] = world.caller(world.token(rights)["token"])
    everything = Rights("dead", frozenset({"admin"}))
    expired, revoked = world.token(everything, expires_seconds=0.001), world.token(everything)
    assert world.admin.call("DELETE", f"/admin/v1/tokens/{revoked['id']}").status == 204
    time.sleep(0.01)
    world.dead = {
        "expired": world.caller(expired["token"]),
        "revoked": world.caller(revoked["token"]),
        "unknown": world.caller("nc_" + "A" * 43),
    }
    yield world
    for caller in (world.admin, *world.callers.values(), *world.dead.values()):
        caller.close()


def test_every_route_is_in_the_table(world: World) -> None:
    described = world.admin.call("GET", "/openapi.json").json()["paths"]
    listed = [(route.method.lower(), route.path) for route in PROJECT_ROUTES + SERVER_ROUTES]
    missing = []
    for path, methods in described.items():
        parts = path.split("/")
        for method in methods:
            found = any(
                method == asked and len(parts) == len(given.split("/")) and _is_path(parts, given.split("/"))
                for asked, given in listed
            )
            if not found and path not in {"/healthz", "/readyz", "/docs", "/openapi.json"}:
                missing.append(f"{method.upper()} {path}")
    assert missing == []


def _is_path(described: list[str], given: list[str]) -> bool:
    return all(mine == theirs or theirs.startswith("{") for mine, theirs in zip(given, described, strict=True))


def test_each_scope_opens_its_calls_on_its_own_project_and_nothing_else(world: World) -> None:
    rows: list[tuple[str, ...]] = []
    wrong: list[str] = []
    for route in PROJECT_ROUTES + SERVER_ROUTES:
        projects = (OWN, OTHER, UNKNOWN) if "{project}" in route.path else ("",)
        cells = []
        for rights in CALLERS:
            got = []
            for project in projects:
                wanted = expected(route, rights, project)
                # what an admin asks of a project without anything may leave something there
                where = world.fresh() if project == UNKNOWN and rights.project == "*" else project
                if route.before and wanted == route.ok and project != UNKNOWN:
                    world.restore(project)
                    world.ask(world.admin, route._replace(method=route.before), project)
                status = world.ask(world.callers[rights.name], route, where)
                got.append(str(status))
                if status not in wanted:
                    wrong.append(f"{route.name} by {rights.name} on {project or 'the server'}: {status}, not {wanted}")
            cells.append(" ".join(got))
        rows.append((route.name, *cells))
    _show(("on own, other and unknown project", *(rights.name for rights in CALLERS)), rows)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("who", ["nobody", "expired", "revoked", "unknown"])
def test_no_token_that_is_good_no_answer(world: World, who: str) -> None:
    caller = world.dead.get(who, world.admin)
    for route in PROJECT_ROUTES + SERVER_ROUTES:
        for project in (OWN, UNKNOWN):
            path = route.path.format(project=project)
            if who == "nobody":
                connection = http.client.HTTPConnection(*caller.address, timeout=HANG_SECONDS)
                connection.request(route.method, path)
                status = connection.getresponse().status
                connection.close()
            else:
                status = world.ask(caller, route, project)
            assert status == 401, (route.name, project)


MALFORMED = [
    ("empty", [b""]),
    ("scheme alone", [b"Bearer"]),
    ("empty token", [b"Bearer "]),
    ("another scheme", [b"Basic dXNlcjpwYXNz"]),
    ("no scheme", [b"nc_" + b"A" * 43]),
    ("garbage", [b"Bearer ';drop table tokens;--"]),
    ("not ASCII", ["Bearer tökén".encode()]),
    ("not UTF-8", [b"Bearer \xff\xfe\xfd"]),
    ("60 kB", [b"Bearer " + b"x" * 60_000]),
    ("a JWT of nobody", [b"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."]),
    ("two tokens", [b"Bearer %(good)s", b"Bearer %(good)s"]),
    ("a token and more", [b"Bearer %(good)s more"]),
    ("a hash for a token", [b"Bearer %(hash)s"]),
]


@pytest.mark.parametrize(("what", "values"), MALFORMED, ids=[what for what, _ in MALFORMED])
@pytest.mark.share(4)
def test_what_is_no_token_is_refused_like_none(world: World, what: str, values: list[bytes]) -> None:
    good = world.server.token.encode()
    for route in (PROJECT_ROUTES[0], PROJECT_ROUTES[3], SERVER_ROUTES[0], SERVER_ROUTES[3]):
        connection = http.client.HTTPConnection(*world.admin.address, timeout=HANG_SECONDS)
        connection.putrequest(route.method, route.path.format(project=OWN))
        for line in values:
            filled = line.replace(b"%(good)s", good).replace(b"%(hash)s", sha256(good).encode())
            connection.putheader("Authorization", filled)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 401, (what, route.name)
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="neff-cache"'
        assert good not in body
        assert json.loads(body)["name"] == "unauthorized"
        connection.close()


def test_an_outsider_sees_no_difference_between_a_project_and_none(world: World) -> None:
    """Status, headers and body are the same, byte for byte, but for the request's own id."""
    token = world.token(Rights("outsider", frozenset({"read", "write", "lease", "delete"}), OWN))["token"]
    for route in PROJECT_ROUTES:
        answers = []
        for project in (OTHER, UNKNOWN):
            connection = http.client.HTTPConnection(*world.admin.address, timeout=HANG_SECONDS)
            headers = {"Authorization": f"Bearer {token}", "X-Request-Id": "same"}
            connection.request(route.method, route.path.format(project=project), b"{", headers)
            answer = connection.getresponse()
            shown = [(name, value) for name, value in answer.headers.items() if name.lower() != "date"]
            answers.append((answer.status, shown, answer.read()))
            connection.close()
        assert answers[0] == answers[1], route.name
        assert answers[0][0] == 404
        assert route.method == "HEAD" or json.loads(answers[0][2])["name"] == "not_found"


def test_the_name_of_the_host_is_checked_before_the_token(world: World) -> None:
    for token in (world.server.token, "wrong", ""):
        caller = Caller(world.server.url, token)
        for path in ("/", "/metrics", f"/v1/{OWN}/revoked", f"/v1/{UNKNOWN}/revoked", "/admin/v1/tokens"):
            assert caller.call("GET", path, headers={"Host": "evil.example"}).status == 421


def test_the_figures_show_an_outsider_nothing_of_other_projects(world: World) -> None:
    outsider = world.callers["read"]
    before = [_compiling(caller) for caller in (outsider, world.admin)]
    lease = f"/v1/{OTHER}/graph/leases/{'ab' * 32}"
    assert world.admin.call("POST", lease, HOLDER).json()["state"] == "granted"
    assert [_compiling(caller) for caller in (outsider, world.admin)] == [before[0], before[1] + 1]
    for path in ("/", "/v1/-/whoami"):
        assert OTHER.encode() not in outsider.call("GET", path).body
    assert OWN.encode() in outsider.call("GET", "/").body
    assert OTHER.encode() in world.admin.call("GET", "/").body


def _compiling(caller: Caller) -> int:
    match = re.search(rb"(\d+) compiling now", caller.call("GET", "/").body)
    assert match is not None
    return int(match[1])


def test_two_teams_share_a_server_and_nothing_else(world: World) -> None:
    """The same bytes under the same key: each team sees, keeps and clears its own."""
    teams = {}
    for name in ("team-red", "team-blue"):
        rights = {"reader": {"read"}, "writer": {"read", "write"}, "cleaner": {"delete"}}
        teams[name] = {
            role: Caller(world.server.url, world.token(Rights(f"{name} {role}", frozenset(scopes), name))["token"])
            for role, scopes in rights.items()
        }
    red, blue = teams.values()
    assert red["writer"].publish(entry("team-red")).status == 201
    # one team's bytes are no news to it that another team has them too
    assert blue["writer"].call("GET", entry("team-blue").artifact).status == 404
    assert blue["writer"].publish(entry("team-blue")).status == 201
    assert red["reader"].publish(entry("team-red")).status == 0, "its first upload is refused"
    assert [line["key"] for line in red["reader"].call("GET", "/v1/team-red/entries").json()["entries"]] == [KEY]
    for path in ("/v1/team-blue/entries", entry("team-blue").artifact):
        assert red["writer"].call("GET", path).status == 404
    assert red["cleaner"].call("DELETE", entry("team-blue").path).status == 404
    assert red["cleaner"].call("DELETE", entry("team-red").path).status == 204
    assert red["reader"].call("GET", entry("team-red").artifact).status == 404
    assert blue["reader"].call("GET", entry("team-blue").artifact).body == entry("team-blue").stored[MAIN_OUTPUT]


def _show(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())  # noqa: T201 - for -s
