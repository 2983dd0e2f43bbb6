"""Calls on a project as a whole: look-up of many keys, reports, plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from fastapi import APIRouter, Body, Depends, Request, Response
from pydantic import Field

from cache_server.access import Scope
from cache_server.database import entries, leases
from cache_server.errors import Problem
from cache_server.routes.common import ActorDep, JobBody, PrincipalDep, ServiceDep, in_project, visible_kinds
from client.names import check_digest, check_kind, check_output

if TYPE_CHECKING:
    from cache_server.access import Actor
    from cache_server.service import Service

router = APIRouter(tags=["projects"])

MAX_KEYS = 4096
MAX_FOUND = 64 << 20
"""Characters of the entries that one look-up answers: usual ones have some thousand."""
_NDJSON = "application/x-ndjson"

_Named: TypeAlias = tuple[str, str]

Readable = Annotated[str, Depends(in_project(Scope.READ))]
Writable = Annotated[str, Depends(in_project(Scope.WRITE))]


class KeyBody(JobBody):
    """One key in its namespace."""

    kind: str
    key: str


class LookupBody(JobBody):
    """Keys to look up."""

    keys: list[KeyBody] = Field(max_length=MAX_KEYS)


@router.post("/v1/{project}/lookup", summary="Which of many entries are there")
async def lookup(project: Readable, service: ServiceDep, principal: PrincipalDep, body: LookupBody) -> Response:
    """Answer the entries that are found, the keys that are missing, and which of those are being compiled."""
    wanted = list(dict.fromkeys((str(check_kind(item.kind)), check_digest(item.key)) for item in body.keys))
    kinds = visible_kinds(principal, project)
    visible = [item for item in wanted if item[0] in kinds]

    return Response(
        await service.workers.run(_lookup, service, project, wanted, visible), media_type="application/json"
    )


def _lookup(service: Service, project: str, wanted: list[_Named], visible: list[_Named]) -> str:
    with service.database.reading() as connection:
        found: dict[_Named, str] = {}
        held_size = 0
        for begin in range(0, len(visible), entries.BATCH):
            some = entries.documents(connection, project, visible[begin : begin + entries.BATCH])
            held_size += sum(map(len, some.values()))
            if held_size > MAX_FOUND:
                raise Problem("too_large", f"the entries are more than {MAX_FOUND} bytes: ask for fewer keys at once")
            found |= some
        missing = [item for item in wanted if item not in found]
        now = service.database.now(connection)
        held = leases.held_keys(connection, project, [item for item in visible if item not in found], now)
    service.metrics.count_lookups(asked=len(wanted), found=len(found))
    # entries are JSON already: parsing thousands of them to write them out again would take longer than to find them
    documents = ",".join(found[item] for item in wanted if item in found)
    return f'{{"found":[{documents}],"missing":{_names(missing)},"leased":{_names(held)}}}'


def _names(items: list[_Named]) -> str:
    return json.dumps([{"kind": kind, "key": key} for kind, key in items])


@router.post("/v1/{project}/reports", summary="A client's summary at exit", status_code=204)
async def report(project: Readable, service: ServiceDep, body: Annotated[dict[str, Any], Body()]) -> Response:
    """Add the counts to the project's totals."""
    await service.workers.run(_report, service, project, body)
    return Response(status_code=204)


def _report(service: Service, project: str, body: dict[str, Any]) -> None:
    keys = body.get("keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Problem("invalid", "the keys of a report are a list of digests")
    used = set(map(check_digest, keys))
    service.reports.add(project, body)
    # hits in node tiers, which this server never sees, keep an entry from being collected too
    service.usage.note_keys(project, used)


@router.get("/v1/{project}/plans/{name}", summary="A stored plan")
async def read_plan(project: Readable, name: str, service: ServiceDep) -> Response:
    """Answer JSON Lines, or 404."""
    body = await service.workers.run(service.plans.read, project, check_output(name))
    if body is None:
        raise Problem("not_found")
    return Response(body, media_type=_NDJSON)


@router.put("/v1/{project}/plans/{name}", summary="Store a plan, in place of an earlier one", status_code=201)
async def write_plan(project: Writable, name: str, service: ServiceDep, by: ActorDep, request: Request) -> Response:
    """Answer 201 for a new name, 200 for a known one."""
    body = await request.body()
    created = await service.workers.run(_write_plan, service, project, check_output(name), body, by)
    return Response(status_code=201 if created else 200)


def _write_plan(service: Service, project: str, name: str, body: bytes, by: Actor) -> bool:
    created = service.plans.write(project, name, body, by=by)
    service.pins.plan_changed(project, name, by=by)
    return created
