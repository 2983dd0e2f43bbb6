"""The audit trail, for admins of the whole server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from cache_server.errors import Problem
from cache_server.routes.common import ServiceDep, answer, server_admin
from cache_server.services.audit import MAX_PAGE, Wanted
from client.names import check_project

router = APIRouter(prefix="/admin/v1", tags=["administration"], dependencies=[Depends(server_admin)])


@router.get("/audit", summary="Who changed what and when, the newest first")
async def read_audit(  # noqa: PLR0917 - FastAPI calls it by keyword
    service: ServiceDep,
    project: str | None = None,
    action: Annotated[str | None, Query(description="`entry.delete`, or `entry` for all that begins so.")] = None,
    actor: Annotated[str | None, Query(description="A name, or a token's label.")] = None,
    since: Annotated[str | None, Query(description="A time such as `2026-11-29T23:00:00Z`.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    before: Annotated[int | None, Query(ge=1, lt=1 << 63, description="`next` of the page before.")] = None,
) -> Response:
    """Answer rows, and `next` if there may be older ones."""
    wanted = Wanted(
        project=None if project is None else check_project(project),
        action=action,
        actor=actor,
        since=None if since is None else _seconds(since),
        before=before,
    )
    rows = await service.workers.run(service.audit.page, wanted, limit)
    return answer({"rows": rows, "next": rows[-1]["id"] if len(rows) == limit else None})


def _seconds(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Problem("invalid", f"{text!r} is no time: expected one such as 2026-11-29T23:00:00Z") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
