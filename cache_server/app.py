"""The ASGI application: FastAPI's JSON routes behind the gate, and the lane for bytes beside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from cache_server.database import entries
from cache_server.errors import PROBLEM_JSON, Problem
from cache_server.gate import Gate
from cache_server.routes import admin, explain, fetch, integrity, leases, operations, policy, projects
from cache_server.routes import entries as entry_routes
from cache_server.routes.artifacts import ArtifactLane
from cache_server.service import Service
from client import __version__
from client.errors import NeffCacheError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

    from cache_server.database.engine import Clock
    from cache_server.gate import Passage
    from cache_server.settings import Settings

_log = structlog.get_logger("cache_server")


def create_app(settings: Settings, *, service: Service | None = None, clock: Clock | None = None) -> ASGIApp:
    """Return the application for ``settings``.

    ``service`` is one that the caller opened and will close; by default one is opened here, with ``clock`` as the
    database's, and closed when the server shuts down. Raises `client.errors.ConfigurationError` if it cannot open.
    """
    opened = service or Service.open(settings, clock=clock)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        settings, workers = opened.settings, opened.workers
        tasks = [
            asyncio.create_task(_sweep_forever(opened)),
            asyncio.create_task(opened.usage.keep_writing(settings.usage_seconds, workers)),
            asyncio.create_task(opened.collection.keep_collecting(settings.collect_seconds, workers, opened.duty)),
        ]
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

    app = FastAPI(
        title="neff-cache",
        version=__version__,
        summary="A persistent, content-addressed compilation cache for AWS Neuron.",
        lifespan=lifespan,
        redoc_url=None,
    )
    app.state.service = opened
    for module in (entry_routes, leases, projects, policy, fetch, explain, integrity, admin, operations):
        app.include_router(module.router)
    app.add_exception_handler(NeffCacheError, _answer)
    app.add_exception_handler(Exception, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return Gate(app, service=opened, lane=ArtifactLane(opened).route)


async def _sweep_forever(service: Service) -> None:
    def know_projects() -> None:
        with service.database.reading() as connection:
            for row in entries.totals(connection):
                service.metrics.know_project(row.project)

    while True:
        try:
            await service.workers.run(know_projects)
            if await service.workers.run(service.duty.is_ours):
                await service.workers.run(service.sweeping.sweep)
        except Exception as error:  # noqa: BLE001 - the next round may go well; the server serves meanwhile
            _log.error("sweep failed", exc_info=error)
        await asyncio.sleep(service.settings.sweep_seconds)


async def _answer(request: Request, error: Exception) -> Response:
    passage: Passage = request.scope["passage"]
    problem = passage.problem(error)
    # pure ASCII, because a detail may quote what no UTF-8 can hold
    body = json.dumps(problem.to_json(passage.request_id))
    return Response(body, problem.kind.status, headers=problem.headers, media_type=PROBLEM_JSON)


async def _answer_http(request: Request, error: Exception) -> Response:
    """Turn what FastAPI's own routing says into the table's rows."""
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    headers = error.headers if isinstance(error, HTTPException) else None
    names = {HTTPStatus.NOT_FOUND: "not_found", HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed"}
    return await _answer(request, Problem(names.get(HTTPStatus(status), "invalid"), headers=headers))


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """Say the first thing that is wrong, in one sentence."""
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": str(error)}
    where = ".".join(str(part) for part in first["loc"])
    return await _answer(request, Problem("invalid", f"{where}: {first['msg']}"))
