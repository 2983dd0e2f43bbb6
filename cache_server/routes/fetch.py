"""Many entries in one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse
from pydantic import Field

from cache_server.access import Scope
from cache_server.routes.common import JobBody, PrincipalDep, ServiceDep, in_project, visible_kinds
from cache_server.routes.projects import MAX_KEYS, KeyBody
from cache_server.services.fetching import EntryStream
from client.names import check_digest, check_kind, check_output

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cache_server.service import Service

router = APIRouter(tags=["projects"])

MEDIA_TYPE = "application/x-tar"

Readable = Annotated[str, Depends(in_project(Scope.READ))]


class FetchBody(JobBody):
    """Keys to fetch, and the names of the outputs that are wanted; all of them if nothing is said."""

    keys: list[KeyBody] = Field(max_length=MAX_KEYS)
    outputs: list[str] | None = Field(default=None, max_length=64)


@router.post("/v1/{project}/fetch", summary="Many entries with their outputs, as one tar stream")
async def fetch(project: Readable, service: ServiceDep, principal: PrincipalDep, body: FetchBody) -> StreamingResponse:
    """Answer the entries that stand, in the order asked, outputs as they are stored; see `client.entry_stream`.

    An entry that cannot be sent whole is left out. A body without the tar's end is one that broke off.
    """
    wanted = dict.fromkeys((str(check_kind(item.kind)), check_digest(item.key)) for item in body.keys)
    kinds = visible_kinds(principal, project)
    names = None if body.outputs is None else frozenset(map(check_output, body.outputs))
    visible = [item for item in wanted if item[0] in kinds]
    stream = EntryStream(service.store, service.database, project, visible, names)
    # the first piece is read before the answer begins, so that an error of the store is still an answer of its own
    try:
        await service.workers.run(service.usage.note_keys, project, {key for _, key in visible})
        first = await service.workers.run(stream.next)
    except BaseException:
        service.workers.surely(stream.close)
        raise
    return StreamingResponse(
        _pieces(service, stream, first), media_type=MEDIA_TYPE, headers={"Cache-Control": "private, no-store"}
    )


async def _pieces(service: Service, stream: EntryStream, piece: bytes | None) -> AsyncIterator[bytes]:
    try:
        while piece is not None:
            service.metrics.sent.inc(len(piece))
            yield piece
            piece = await service.workers.run(stream.next)
    finally:
        service.workers.surely(stream.close)
