"""The ASGI application: FastAPI's JSON routes behind the gate, and the lane for bytes beside them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from cache_server import periodic
from cache_server.errors import PROBLEM_JSON, Problem
from cache_server.gate import Gate
from cache_server.interface.document import describe
from cache_server.routes import (
    admin,
    audit,
    explain,
    fetch,
    integrity,
    interface,
    leases,
    operations,
    policy,
    probes,
    projects,
    tokens,
    trust,
)
from cache_server.routes import entries as entry_routes
from cache_server.routes.artifacts import ArtifactLane
from cache_server.service import Service
from client.errors import NeffCacheError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

    from cache_server.database.engine import Clock
    from cache_server.gate import Passage
    from cache_server.settings import Settings

ROUTERS = (
    *(module.router for module in (entry_routes, leases, projects, policy, trust, fetch, explain, integrity)),
    *(module.router for module in (admin, tokens, audit, operations, probes, interface)),
    tokens.own_router,
)

_log = structlog.get_logger("cache_server")


def create_app(settings: Settings, *, service: Service | None = None, clock: Clock | None = None) -> ASGIApp:
    """Return the application for ``settings``.

    ``service`` is one that the caller opened and will close; by default one is opened here, with ``clock`` as the
    database's, and closed when the server shuts down. Raises `client.errors.ConfigurationError` if it cannot open.
    """
    opened = service or Service.open(settings, clock=clock)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(task) for task in periodic.tasks(opened)]
        if opened.settings.role != "api":
            opened.scrubbing.start()
        try:
            yield
        finally:
            opened.waiters.close()
            opened.sweeping.stopping = opened.collection.stopping = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(opened.scrubbing.stop)
            if service is None:
                opened.close()

    # described by `cache_server.interface`; an address with a slash too many is another address, not a redirect
    app = FastAPI(
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # newer versions send spans, metrics and logs of their own as soon as OpenTelemetry's variables are set, parts
        # of bodies among them: ours are in `cache_server.tracing.otel`. To older ones this means nothing
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    app.state.service = opened
    app.state.document = interface_document
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(NeffCacheError, _answer)
    app.add_exception_handler(Exception, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return Gate(app, service=opened, lane=ArtifactLane(opened).route)


@functools.cache
def interface_document() -> dict[str, Any]:
    """Return the OpenAPI document, which no setting changes."""
    return describe(ROUTERS)


async def _answer(request: Request, error: Exception) -> Response:
    passage: Passage = request.scope["passage"]
    problem = passage.problem(error)
    # pure ASCII, because a detail may quote what no UTF-8 can hold
    body = json.dumps(problem.to_json(passage.request_id))
    return Response(body, problem.kind.status, headers=problem.headers, media_type=PROBLEM_JSON)


async def _answer_http(request: Request, error: Exception) -> Response:
    """Turn what FastAPI's own routing says into the table's rows."""
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {"Allow": ", ".join(_methods_of(request.url.path))}
        return await _answer(request, Problem("method_not_allowed", headers=headers))
    return await _answer(request, Problem("not_found" if status == HTTPStatus.NOT_FOUND else "invalid"))


def _methods_of(path: str) -> list[str]:
    """Return all methods of an address: FastAPI has a route for each, and names those of the first."""
    found = {
        method
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, Route) and route.path_regex.match(path)
        for method in route.methods or ()
    }
    return sorted(found | {"HEAD"} if "GET" in found else found)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """Say the first thing that is wrong, in one sentence."""
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": str(error)}
    if tuple(first["loc"]) == ("body",) and await request.body() and not _is_json(request):
        return await _answer(request, Problem("unsupported_type", headers={"Accept": "application/json"}))
    where = ".".join(str(part) for part in first["loc"])
    return await _answer(request, Problem("invalid", f"{where}: {first['msg']}"))


def _is_json(request: Request) -> bool:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")
