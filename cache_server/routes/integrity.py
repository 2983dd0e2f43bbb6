"""The scrub: ask for a run, and see how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Response

from cache_server.clock import rfc3339
from cache_server.routes.common import ServiceDep, answer, server_admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from cache_server.database.scrub import Progress
    from cache_server.service import Service
    from client.wire import Json

router = APIRouter(prefix="/admin/v1", tags=["administration"], dependencies=[Depends(server_admin)])


@router.post("/scrub", summary="Have all stored outputs read again and verified", status_code=202)
async def start_scrub(service: ServiceDep) -> Response:
    """Answer 202 with the run: a new one, or the one that goes on and takes in what became due."""
    return answer(await service.workers.run(_shown, service, service.scrubbing.request), 202)


@router.get("/scrub", summary="How far the scrub is")
async def scrub_progress(service: ServiceDep) -> Response:
    """Answer the run that goes on, or the last one, or ``{"state": "never"}``."""
    return answer(await service.workers.run(_shown, service, service.scrubbing.progress))


def _shown(service: Service, ask: Callable[[], Progress | None]) -> Json:
    progress, suspected = ask(), service.scrubbing.suspected()
    if progress is None:
        return {"state": "never"}
    going_on = "running" if progress.stopped is None else "resting"
    return {
        "state": going_on if progress.ended is None else "ended",
        "started": rfc3339(progress.started),
        "ended": None if progress.ended is None else rfc3339(progress.ended),
        **progress.counts(),
        "suspected": suspected,
        "reason": progress.reason,
    }
