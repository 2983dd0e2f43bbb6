"""What operators ask: metrics, and a page to look at."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST

from cache_server.access import Scope
from cache_server.database import entries, leases
from cache_server.errors import Problem
from cache_server.metric_readings import render
from cache_server.routes.common import PrincipalDep, ServiceDep  # noqa: TC001 - FastAPI reads the annotations
from cache_server.services.reports import Reported, Reports
from client import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cache_server.database.entries import Totals
    from cache_server.service import Service

router = APIRouter(tags=["operations"])

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


@router.get("/metrics", summary="Prometheus metrics")
async def metrics(service: ServiceDep, principal: PrincipalDep) -> Response:
    """Answer Prometheus' text format."""
    if not principal.has(Scope.METRICS):
        raise Problem("forbidden", "this needs scope metrics or admin")
    return Response(await service.workers.run(render, service), media_type=CONTENT_TYPE_LATEST)


@router.get("/", response_class=HTMLResponse, summary="What this server holds")
async def page(service: ServiceDep, principal: PrincipalDep) -> HTMLResponse:
    """Answer a small page with the figures of the projects that the caller may read."""
    totals, reported, held = await service.workers.run(_figures, service)
    visible = [row for row in totals if principal.may(Scope.READ, row.project)]
    saved = [line for line in reported if principal.may(Scope.READ, line.project)]
    compiling = sum(count for project, count in held.items() if principal.may(Scope.READ, project))
    return HTMLResponse(_html(visible, saved, compiling), headers=PAGE_HEADERS)


def _figures(service: Service) -> tuple[list[Totals], list[Reported], dict[str, int]]:
    with service.database.reading() as connection:
        held = leases.held_by_project(connection, service.database.now(connection))
        return entries.totals(connection), Reports.totals(connection), held


def _html(totals: list[Totals], reported: list[Reported], held: int) -> str:
    saved = sum(line.total for line in reported if line.counter == "saved_seconds")
    rows = [
        (row.project, row.kind, row.entries, f"{row.stored_bytes / 1e6:,.1f} MB", f"{row.compile_seconds:,.1f} s")
        for row in totals
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>neff-cache</title>"
        "<style>body{font:15px system-ui;margin:2rem;max-width:60rem}table{border-collapse:collapse}"
        "th,td{text-align:left;padding:.3rem 1rem;border-bottom:1px solid #ccc}</style>"
        f"<h1>neff-cache {escape(__version__)}</h1>"
        f"<p>{held} compiling now. Clients reported {saved:,.1f} seconds of compiling saved.</p>"
        + _table(("project", "kind", "entries", "stored", "compile time"), rows)
        + "<p><a href=/docs>Interface</a></p></html>"
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    cells = "".join(f"<th>{escape(name)}" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(value))}" for value in row) for row in rows)
    return f"<table><tr>{cells}{body}</table>"
