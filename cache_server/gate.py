"""What every request passes first: request id, Host, token, body limit; and what counts and logs it at the end.

Artifacts and outputs are routed here, in front of FastAPI: its routing would cost more than the rest of a hit.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cache_server.access import check_path
from cache_server.errors import Problem
from cache_server.hosts import HostList
from cache_server.http.asgi import Incoming, header, send_problem
from cache_server.stores.base import StoreError, StoreFullError
from client.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from cache_server.access import Principal
    from cache_server.service import Service

    Lane = Callable[[Scope, Receive, Send], Awaitable[None]]

UNGUARDED = frozenset({"/healthz", "/readyz"})
"""Probes come by address, from machines without a token."""

_OF_COLLECTORS = UNGUARDED | {"/metrics", "/admin/v1/readiness"}
"""All that a server of role ``collector`` answers."""

_PUBLIC = UNGUARDED | {"/docs", "/openapi.json"}
_OWN_FAULTS = frozenset({"internal", "store_unavailable", "not_ready"})
_SENDS_OUTPUT = frozenset({200, 206})
_REQUEST_ID = re.compile(r"[0-9A-Za-z._-]{1,64}")
_BATCH_ROUTES = re.compile(r"/v1/[^/]+/(lookup|plans/[^/]+)")

_ROWS: tuple[tuple[type[Exception], str], ...] = (
    (StoreFullError, "store_full"),
    (StoreError, "store_unavailable"),
    (SQLAlchemyError, "not_ready"),
)

_log = structlog.get_logger("cache_server.access")


def as_problem(error: Exception) -> Problem:
    """Return the row of the error table for an exception that a request ended in."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, WireError):
        return Problem("invalid", str(error))
    if isinstance(error, OperationalError) and "disk is full" in str(error.orig):
        return Problem("store_full")
    return Problem(next((name for kind, name in _ROWS if isinstance(error, kind)), "internal"))


class Gate:
    """The outermost ASGI application."""

    def __init__(self, app: ASGIApp, *, service: Service, lane: Callable[[str], tuple[str, Lane] | None]) -> None:
        """``lane`` gives the route's name and handler for paths that are not FastAPI's."""
        self._app = app
        self._service = service
        self._hosts = HostList(service.settings)
        self._lane = lane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await Passage(self, self._service, scope, send).run(receive)

    async def handle(self, passage: Passage, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then hand it to its route."""
        path = scope["path"]
        if path not in UNGUARDED:
            self._hosts.check(header(scope, b"host"), path)
            if "target_host" in scope:
                # of a request for http://host/path that host counts (RFC 9112, section 3.2.2), and Host must not differ
                self._hosts.check(scope["target_host"], path)
        if path not in _PUBLIC:
            scope["principal"] = passage.principal = principal = await self._principal(scope)
            self._service.throttle.check(principal, path)
            check_path(principal, path)
        if path not in _OF_COLLECTORS and self._service.settings.role == "collector":
            raise Problem("not_found", "this server only does the periodic work: ask one of role api or all")
        if b"%00" in scope["query_string"]:
            # no name holds it, and PostgreSQL would call the whole question impossible
            raise Problem("invalid", "a query holds no NUL character")
        lane = self._lane(path)
        if lane is not None:
            passage.route, handler = lane
            await handler(scope, receive, send)
            return
        settings = self._service.settings
        limit = settings.max_batch_bytes if _BATCH_ROUTES.fullmatch(path) else settings.max_entry_bytes
        body = await _held_body(scope, receive, limit, settings.upload_idle_seconds)
        # HEAD is GET whose body the connection leaves out; it does so by the scope that it has itself
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            await self._app(asked, body, send)
        finally:
            scope.setdefault("route", asked.get("route"))

    async def _principal(self, scope: Scope) -> Principal:
        value = header(scope, b"authorization")
        if value is not None:
            scheme, _, token = value.partition(" ")
            known = self._service.authentication
            principal = await known.principal(token.strip()) if scheme.lower() == "bearer" else None
        else:
            principal = self._service.authentication.without_token(scope.get("client_certificate"))
        if principal is None:
            raise Problem("unauthorized", headers={"WWW-Authenticate": 'Bearer realm="neff-cache"'})
        return principal


class Passage:
    """One request on its way through."""

    def __init__(self, gate: Gate, service: Service, scope: Scope, send: Send) -> None:
        self._gate = gate
        self._service = service
        self._scope = scope
        self._send = send
        given = header(scope, b"x-request-id")
        self.request_id = given if given and _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        self.principal: Principal | None = None
        self.route = ""
        self._error: str | None = None
        self._status = 0
        self._sent = 0
        self._answered: Exception | None = None

    async def run(self, receive: Receive) -> None:
        """Have the request served; answer what it raises; count and log it."""
        metrics = self._service.metrics
        begin = metrics.monotonic()
        scope = self._scope
        scope["passage"] = self
        with (
            metrics.running.track_inprogress(),
            structlog.contextvars.bound_contextvars(request_id=self.request_id),
            self._service.tracing.request(scope) as span,
        ):
            try:
                await self._gate.handle(self, scope, receive, self._counting_send)
            except Exception as error:  # noqa: BLE001 - the last line of defence: everything becomes a row of the table
                await self._fail(error)
            except asyncio.CancelledError:
                if not self._service.readiness.draining:
                    raise
                await self._cut()
            finally:
                seconds = metrics.monotonic() - begin
                route = self.route or _fastapi_route(scope)
                if self.route and self._scope["method"] == "GET" and self._status in _SENDS_OUTPUT:
                    metrics.sent.inc(self._sent)
                metrics.requests.labels(route, str(self._status)).inc()
                metrics.request_seconds.labels(route).observe(seconds)
                span.answered(route, self._status, self.request_id)
                if self._service.settings.access_log or self._failed():
                    self._log(route, seconds, span.trace_id)

    def _failed(self) -> bool:
        """Whether the request failed; a miss is an answer like a hit."""
        return self._status >= HTTPStatus.BAD_REQUEST and self._status != HTTPStatus.NOT_FOUND

    def problem(self, error: Exception) -> Problem:
        """Return what to answer for an exception, counted, and logged where it is the server's own fault."""
        problem = as_problem(error)
        # what a probe is told, `cache_server.services.readiness` has logged when it changed
        if problem.kind.name in _OWN_FAULTS and self._scope["path"] not in UNGUARDED:
            _log.error("request failed", path=self._scope["path"], exc_info=error)
        self._service.metrics.errors.labels(problem.kind.name).inc()
        self._answered = error
        self._error = problem.kind.name
        return problem

    async def _fail(self, error: Exception) -> None:
        if error is self._answered:
            # FastAPI raises again what its handler has answered
            return
        problem = self.problem(error)
        if self._status:
            # the head is out: only a broken connection can still say that the body is not whole
            raise error
        await send_problem(self._counting_send, problem, self.request_id, method=self._scope["method"])

    async def _cut(self) -> None:
        """End a request that took longer than a server that stops may wait for: no fault, and nothing to look into."""
        self._error = "not_ready"
        self._service.metrics.errors.labels(self._error).inc()
        if not self._status:
            problem = Problem(self._error, "this server stops: send the request again", headers={"Retry-After": "1"})
            await send_problem(self._counting_send, problem, self.request_id, method=self._scope["method"])
        elif "abort" in self._scope:
            # the head is out: only a broken connection can still say that the body is not whole
            self._scope["abort"]()
            await asyncio.sleep(0)

    async def _counting_send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            given = message["headers"]
            message["headers"] = [*given, (b"x-request-id", self.request_id.encode())]
            if b"cache-control" not in dict(given):
                # a cache in between would hand one caller's answer, or refusal, to the next
                message["headers"].append((b"cache-control", b"no-store"))
            if self._service.readiness.draining:
                # the connection's next request shall go to a server that stays
                message["headers"].append((b"connection", b"close"))
        else:
            self._sent += len(message.get("body", b""))
        await self._send(message)

    def _log(self, route: str, seconds: float, trace_id: str | None) -> None:
        """Write the line; its fields are described in ``docs/logging.md``. Queries and headers may hold secrets."""
        client = self._scope.get("client")
        log = _log.warning if self._failed() else _log.info
        log(
            "request",
            method=self._scope["method"],
            path=self._scope["path"],
            route=route,
            status=self._status,
            seconds=round(seconds, 6),
            sent=self._sent,
            caller=None if self.principal is None else self.principal.shown,
            client=client[0] if client else None,
            error=self._error,
            **({} if trace_id is None else {"trace_id": trace_id}),
        )


def _fastapi_route(scope: Scope) -> str:
    """Return the route's template; paths that no route takes share one name, so that labels stay few."""
    return getattr(scope.get("route"), "path", "none")


async def _held_body(scope: Scope, receive: Receive, limit: int, idle_seconds: float) -> Receive:
    """Receive the whole body, at most ``limit`` bytes of it, and return a ``receive`` that hands it out."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise Problem("too_large")
    body = bytearray()
    more = True
    incoming = Incoming(receive, idle_seconds)
    while more:
        message = await incoming.next()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise Problem("too_large")
    handed_out = False

    async def held() -> Message:
        nonlocal handed_out
        if handed_out:
            return await receive()
        handed_out = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    return held
