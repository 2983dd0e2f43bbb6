"""Entries: read, publish, delete; and suspicion of one of their outputs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Request, Response

from cache_server.access import Scope
from cache_server.address import Address
from cache_server.database import entries
from cache_server.errors import Problem
from cache_server.http.asgi import stop_if_gone, watching
from cache_server.routes.common import ActorDep, JobBody, ServiceDep, addressed, answer, in_project
from client.names import check_digest
from client.wire import Entry

if TYPE_CHECKING:
    from cache_server.access import Actor
    from cache_server.service import Service
    from cache_server.services.publishing import Published

router = APIRouter(tags=["entries"])

_PATH = "/v1/{project}/{kind}/entries/{key}"

Readable = Annotated[Address, Depends(addressed(Scope.READ))]
Writable = Annotated[Address, Depends(addressed(Scope.WRITE))]
Deletable = Annotated[Address, Depends(addressed(Scope.DELETE))]


class SuspectBody(JobBody):
    """The digest that the entry names for the output in question."""

    sha256: str


@router.get(_PATH, summary="The whole entry, key document included")
async def read_entry(address: Readable, service: ServiceDep) -> Response:
    """Answer 200 with entry.json, or 404."""
    document = await service.database.read(
        lambda connection: entries.document(connection, address), service.workers.pool
    )
    if document is None:
        raise Problem("not_found")
    return Response(document, media_type="application/json")


@router.put(_PATH, summary="Publish: create-only, idempotent, ends any lease on the key", status_code=201)
async def publish_entry(
    address: Writable,
    service: ServiceDep,
    by: ActorDep,
    body: Annotated[dict[str, Any], Body()],
) -> Response:
    """Answer 201 with the entry, or 200 with the one that stood before; 409 if an output is not stored."""
    published = await service.workers.run(_publish, service, address, Entry.from_json(body), by)
    return answer(published.entry.to_json(), 201 if published.created else 200)


def _publish(service: Service, address: Address, entry: Entry, by: Actor) -> Published:
    service.quotas.admit(address, sum(output.stored_size for output in entry.outputs))
    return service.publishing.publish(address, entry, by=by)


@router.delete(_PATH, summary="Delete an entry", status_code=204)
async def delete_entry(
    address: Deletable,
    service: ServiceDep,
    by: ActorDep,
    reason: Literal["poisoned"] | None = None,
) -> Response:
    """Answer 204 or 404. ``?reason=poisoned`` makes clients drop it from their own tiers for 90 days."""
    if not await service.workers.run(service.deletion.delete, address, poisoned=reason == "poisoned", by=by):
        raise Problem("not_found")
    return Response(status_code=204)


@router.post(_PATH + "/suspect", summary="Have an output verified where it is stored")
async def suspect_output(
    address: Readable, service: ServiceDep, by: ActorDep, body: SuspectBody, request: Request
) -> Response:
    """Answer ``sound``, ``quarantined`` or ``absent``."""
    digest = check_digest(body.sha256, "digest")
    async with watching(request.receive) as gone:
        try:
            verdict = await service.workers.run(
                service.suspicion.suspect, address, digest, by=by, pace=stop_if_gone(gone)
            )
        finally:
            if gone.done():
                # whoever went has not waited for the verdict: the scrub finds one
                service.workers.surely(functools.partial(service.scrubbing.note, address, digest))
    service.metrics.suspects.labels(verdict).inc()
    return answer({"state": verdict})


@router.get("/v1/{project}/revoked", summary="Entries that were deleted as poisoned")
async def revoked(project: Annotated[str, Depends(in_project(Scope.READ))], service: ServiceDep) -> Response:
    """Answer what clients must drop from their own tiers."""
    return answer({"revoked": await service.workers.run(service.deletion.revoked, project)})
