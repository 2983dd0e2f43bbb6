"""What probes ask: whether the process lives, and whether it should be sent requests."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse

from cache_server.errors import Problem
from cache_server.routes.common import ServiceDep, answer, server_admin

router = APIRouter(tags=["operations"])


@router.get("/healthz", response_class=PlainTextResponse, summary="Whether the process serves")
async def healthz() -> str:
    """Answer ``ok``."""
    return "ok"


@router.get("/readyz", response_class=PlainTextResponse, summary="Whether this server should be sent requests")
async def readyz(service: ServiceDep) -> str:
    """Answer ``ok``, or 503 where store, database or schema do not serve, or the server is about to stop.

    The log says what is wrong, the answer does not: anybody may ask.
    """
    ready, _ = await service.readiness.look()
    if not ready:
        raise Problem("not_ready")
    return "ok"


@router.get("/admin/v1/readiness", summary="What `/readyz` goes by, part by part", dependencies=[Depends(server_admin)])
async def readiness(service: ServiceDep) -> Response:
    """Answer whether the server is ready, its role, and for each part ``ok`` or what is wrong with it."""
    ready, parts = await service.readiness.look()
    return answer({"ready": ready, "role": service.settings.role, "parts": parts})
