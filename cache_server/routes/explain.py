"""Why a key missed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from cache_server.access import Scope
from cache_server.routes.common import WHOLE, JobBody, PrincipalDep, ServiceDep, answer, in_project, visible_kinds
from cache_server.services.explaining import nearest_entries
from client.explaining import Near, check_asked

router = APIRouter(tags=["projects"])

MAX_NEAREST = 20
MAX_WITHOUT = 4096

Readable = Annotated[str, Depends(in_project(Scope.READ))]


class ExplainBody(JobBody):
    """The key document that missed; keys that are of no interest; how many near entries to name."""

    key_document: dict[str, Any]
    without: list[str] = Field(default=[], max_length=MAX_WITHOUT)
    limit: Annotated[int, Field(ge=1, le=MAX_NEAREST), WHOLE] = 3


@router.post("/v1/{project}/explain", summary="What differs from the nearest stored entries")
async def explain(project: Readable, service: ServiceDep, principal: PrincipalDep, body: ExplainBody) -> Response:
    """Answer the nearest entries, of the same kind first, each with every part of the key that differs."""
    asked = check_asked(body.key_document)
    kinds = visible_kinds(principal, project)

    def look() -> list[Near]:
        with service.database.reading() as connection:
            return nearest_entries(connection, project, asked, kinds=kinds, without=body.without, limit=body.limit)

    return answer({"nearest": [near.to_json() for near in await service.workers.run_slow(look)]})
