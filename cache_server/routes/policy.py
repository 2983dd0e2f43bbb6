"""A project's entries, page by page, its pins, and how much of its quota it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from cache_server.access import Scope
from cache_server.address import Address
from cache_server.clock import rfc3339
from cache_server.collection_rules import score
from cache_server.database import policy, usage
from cache_server.errors import Problem
from cache_server.routes.common import (
    ActorDep,
    PrincipalDep,
    ServiceDep,
    addressed,
    answer,
    in_project,
    visible_kinds,
)
from client.names import check_digest, check_kind, check_output

if TYPE_CHECKING:
    from cache_server.collection_rules import Candidate, Named, PinSet
    from cache_server.service import Service
    from client.wire import Json

router = APIRouter(tags=["projects"])

MAX_PAGE = 1000

Readable = Annotated[str, Depends(in_project(Scope.READ))]
Writable = Annotated[str, Depends(in_project(Scope.WRITE))]
WritableEntry = Annotated[Address, Depends(addressed(Scope.WRITE))]

_PINS = "/v1/{project}/pins"
_ENTRY = _PINS + "/entries/{kind}/{key}"
_LABEL = _PINS + "/labels/{label:path}"
_PLAN = _PINS + "/plans/{name}"


@router.get("/v1/{project}/entries", summary="The entries of a project, page by page")
async def list_entries(  # noqa: PLR0917 - FastAPI calls it by keyword
    project: Readable,
    service: ServiceDep,
    principal: PrincipalDep,
    kind: str | None = None,
    label: str | None = None,
    compiler_version: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(description="`next` of the page before.")] = None,
) -> Response:
    """Answer entries in the order of their names, with what is known of their use, and `next` if there may be more."""
    kinds = visible_kinds(principal, project)
    if kind is not None:
        # who may not read it is told so: a list without entries would look like an empty cache
        principal.require(Scope.READ, project, check_kind(kind))
        kinds = frozenset({kind})
    after = None if cursor is None else _named(project, cursor)
    chosen = {"kinds": kinds, "label": label, "version": compiler_version}
    return answer(await service.workers.run(_page, service, project, after, limit, chosen))


def _named(project: str, cursor: str) -> Named:
    kind, _, key = cursor.partition("/")
    return project, str(check_kind(kind)), check_digest(key)


def _page(service: Service, project: str, after: Named | None, limit: int, chosen: dict[str, Any]) -> Json:
    with service.database.reading() as connection:
        now = service.database.now(connection)
        pins = policy.pin_set(policy.rows(connection, policy.PINS, project))
        found = usage.page(connection, after, limit, project=project, **chosen)
    last = f"{found[-1].kind}/{found[-1].key}" if len(found) == limit else None
    return {"entries": [_shown(candidate, pins, now) for candidate in found], "next": last}


def _shown(candidate: Candidate, pins: PinSet, now: float) -> Json:
    return {
        "kind": candidate.kind,
        "key": candidate.key,
        "label": candidate.label,
        "compiler": candidate.compiler,
        "compiler_version": candidate.version,
        "stored_bytes": candidate.stored_bytes,
        "compile_seconds": candidate.compile_seconds,
        "published": rfc3339(candidate.indexed),
        "last_used": rfc3339(candidate.last_used) if candidate.last_used else None,
        "hits": candidate.hits,
        "score": score(candidate, now),
        "pinned": pins.holds(candidate),
    }


@router.get(_PINS, summary="What is pinned")
async def list_pins(project: Readable, service: ServiceDep) -> Response:
    """Answer the pins of entries, labels and plans."""
    return answer({"pins": await service.workers.run(service.pins.list, project)})


@router.put(_ENTRY, summary="Pin an entry: it is never collected", status_code=201)
async def pin_entry(address: WritableEntry, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 201, or 200 if it was pinned before; 404 if there is no such entry."""
    return _pinned(await service.workers.run(service.pins.pin_entry, address, by=by))


@router.delete(_ENTRY, summary="Remove an entry's pin", status_code=204)
async def unpin_entry(address: WritableEntry, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204 or 404."""
    return _unpinned(await service.workers.run(service.pins.unpin_entry, address, by=by))


@router.put(_LABEL, summary="Pin all entries of a label, those to come included", status_code=201)
async def pin_label(project: Writable, label: str, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 201, or 200 if it was pinned before."""
    return _pinned(await service.workers.run(service.pins.pin_label, project, label, by=by))


@router.delete(_LABEL, summary="Remove a label's pin", status_code=204)
async def unpin_label(project: Writable, label: str, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204 or 404."""
    return _unpinned(await service.workers.run(service.pins.unpin_label, project, label, by=by))


@router.put(_PLAN, summary="Pin all entries of a stored plan", status_code=201)
async def pin_plan(project: Writable, name: str, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 201, or 200 if it was pinned before; 404 if there is no such plan."""
    return _pinned(await service.workers.run(service.pins.pin_plan, project, check_output(name), by=by))


@router.delete(_PLAN, summary="Remove a plan's pin", status_code=204)
async def unpin_plan(project: Writable, name: str, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204 or 404."""
    return _unpinned(await service.workers.run(service.pins.unpin_plan, project, check_output(name), by=by))


def _pinned(created: bool) -> Response:
    return answer({"created": created}, 201 if created else 200)


def _unpinned(removed: bool) -> Response:
    if not removed:
        raise Problem("not_found", "there is no such pin")
    return Response(status_code=204)


@router.get("/v1/{project}/quota", summary="How much the project may hold, and holds")
async def read_quota(project: Readable, service: ServiceDep) -> Response:
    """Answer the quota, null where there is no bound, what is held, and whether quota and store have room for more."""
    return answer(await service.workers.run(_quota, service, project))


def _quota(service: Service, project: str) -> dict[str, Any]:
    with service.database.reading() as connection:
        held = usage.amount(connection, project)
        found = {**policy.limit(connection, project)._asdict(), "held": held._asdict()}
    return {**found, "room": {"quota": service.quotas.has_room(project), "store": service.space.has_room()}}
