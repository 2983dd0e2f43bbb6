"""Every answer says whether it may be kept, whatever its route and status: a cache in between obeys, unasked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cache_server.access import SERVER, Grant, Scope
from cache_server.app import interface_document
from cache_server.services.tokens import NewToken
from cache_server.stores.base import StoreError
from tests.cache_server.harness import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx
    import pytest

    from tests.cache_server.harness import InProcess

_MAY_STAY = "private, no-cache"
_OUTPUTS = re.compile(r"/v1/[^/]+/[^/]+/(artifacts/[^/]+|entries/[^/]+/blobs/[^/]+)")
_NAMES = {
    "project": "default", "kind": "graph", "key": "0" * 64, "sha256": "0" * 64, "name": "n", "label": "l",
    "public_id": "0" * 12, "key_id": "0" * 64,
}  # fmt: skip


def _routes() -> Iterator[tuple[str, str]]:
    """Yield method and path of every call of the interface."""
    for path, calls in interface_document()["paths"].items():
        for method in calls:
            if method in {"get", "put", "post", "delete", "patch", "head"}:
                yield method.upper(), re.sub(r"{(\w+)}", lambda found: _NAMES.get(found[1], "0" * 12), path)


def _check(answer: httpx.Response, what: object) -> int:
    said = answer.headers.get_list("cache-control")
    kept = answer.status_code in {200, 206, 304} and answer.request.method in {"GET", "HEAD"}
    expected = _MAY_STAY if kept and _OUTPUTS.fullmatch(answer.request.url.path) else "no-store"
    assert len(said) == 1, (what, answer.status_code, said)
    assert expected in said[0], (what, answer.status_code, said)
    return answer.status_code


def test_every_route_says_that_its_answer_is_not_to_be_kept_whatever_it_is(
    make_server: Callable[..., InProcess],
) -> None:
    server = make_server()
    wanted = NewToken("poor", (Grant(frozenset({Scope.LEASE})),))
    poor, _ = server.service.tokens.create(wanted, by=SERVER)
    routes = list(_routes())
    assert len(routes) > 50
    seen: set[int] = set()
    for method, path in routes:
        asked: tuple[dict[str, Any], ...] = (
            {},
            {"token": None},
            {"token": "x" * 40},
            {"token": poor},
            {"headers": {"Host": "elsewhere.example"}},
            {"content": b"{}", "headers": {"Content-Type": "application/json"}},
            {"content": b"[", "headers": {"Content-Type": "application/json"}},
            {"content": b"x" * (9 << 20)},
        )
        seen |= {_check(server.call(method, path, **options), (method, path, options)) for options in asked}
        seen.add(_check(server.call("OPTIONS", path), ("OPTIONS", path)))
        seen.add(_check(server.call("GET", path.replace("/default/", "/No Project/") + "/none"), path))
    assert seen >= {200, 204, 401, 403, 404, 405, 413, 421, 422}


def test_an_output_is_for_its_caller_alone_and_is_asked_for_again(make_server: Callable[..., InProcess]) -> None:
    server, built = make_server(), build()
    assert _check(server.publish(built), "publish") == 201
    tag = f'"{built.entry.outputs[0].sha256}"'
    for path in (built.artifact, built.blob()):
        for headers, status in (
            ({}, 200),
            ({"Range": "bytes=0-3"}, 206),
            ({"If-None-Match": tag}, 304),
            ({"If-Match": '"x"'}, 412),
            ({"Range": "bytes=9999-"}, 416),
        ):
            assert _check(server.call("GET", path, headers=headers), (path, headers)) == status
        assert _check(server.call("GET", path, token=None), path) == 401


def test_a_caller_who_is_throttled_and_a_server_that_cannot_serve_say_so_too(
    make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build()
    server = make_server(rate_limit=0.001, rate_burst_seconds=0.0)
    assert 429 in [_check(server.call("GET", "/v1/default/revoked"), "throttled") for _ in range(4)]
    server.service.readiness.draining = True
    assert _check(server.call("GET", "/readyz", token=None), "draining") == 503
    assert _check(server.call("GET", "/healthz", token=None), "health") == 200
    server.close()

    def away(*_: object) -> None:
        raise StoreError("the store is away")

    other = make_server()
    other.publish(built)
    monkeypatch.setattr(type(other.service.store), "open_output", away)
    assert _check(other.call("GET", built.artifact), "away") == 503
