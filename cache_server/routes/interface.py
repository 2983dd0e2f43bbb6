"""The interface described by itself: for programs, and as a page for people."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from cache_server.interface.page import interface_page
from cache_server.routes.common import ServiceDep, answer
from cache_server.routes.operations import PAGE_HEADERS

router = APIRouter(tags=["operations"])


@router.get("/openapi.json", summary="This document")
async def interface_document(request: Request, service: ServiceDep) -> Response:
    """Answer OpenAPI 3.1; the same as docs/openapi.json of this version."""
    return answer(await service.workers.run(request.app.state.document))


@router.get("/docs", response_class=HTMLResponse, summary="This document as a page")
async def interface_page_of(request: Request, service: ServiceDep) -> HTMLResponse:
    """Answer a page without scripts."""

    def page() -> str:
        return interface_page(request.app.state.document())

    return HTMLResponse(await service.workers.run(page), headers=PAGE_HEADERS)
