"""Whose signatures a project asks for, and promotions from one project to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from cache_server.access import Scope
from cache_server.errors import Problem
from cache_server.routes.common import ActorDep, OperatorBody, PrincipalDep, ServiceDep, answer, in_project
from client.errors import FormatError, SignatureError
from client.names import check_project
from client.signing.statements import Promotion
from client.signing.trust import TrustedKey

if TYPE_CHECKING:
    from cache_server.access import Actor
    from cache_server.service import Service
    from client.wire import Json

router = APIRouter(tags=["trust"])

MAX_RECORDS = 64
MAX_PAGE = 1000

Readable = Annotated[str, Depends(in_project(Scope.READ))]
Administered = Annotated[str, Depends(in_project(Scope.ADMIN))]

_TRUST = "/v1/{project}/trust"
_KEY = _TRUST + "/keys/{key_id}"


class RequireBody(OperatorBody):
    """Whether what is published in the project must be signed."""

    signatures: Literal["required", "optional"]


class TrustedKeyBody(OperatorBody):
    """A trusted key as a line of a list: ``ed25519 BASE64 NAME [option=value …]``."""

    line: str = Field(max_length=2000)


class PromotionBody(OperatorBody):
    """Signed records of the entries that are to be let in from project ``from``; see docs/trust.md."""

    source: str = Field(alias="from")
    records: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_RECORDS)


@router.get(_TRUST, summary="Whose signatures the project asks for")
async def read_trust(project: Readable, service: ServiceDep) -> Response:
    """Answer whether signatures are required, and the trusted keys as lines of a list."""
    asked = await service.workers.run(service.trust.of, project)
    return answer(asked.to_json())


@router.put(_TRUST, summary="Require signatures on what is published, or do not", status_code=204)
async def require_signatures(project: Administered, body: RequireBody, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204. What stands already stays: see ``/trust/check``."""
    required = body.signatures == "required"
    await service.workers.run(lambda: service.trust.require(project, required=required, by=by))
    return Response(status_code=204)


@router.put(_KEY, summary="Trust a key, or change what it may sign", status_code=204)
async def put_key(
    project: Administered, key_id: str, body: TrustedKeyBody, service: ServiceDep, by: ActorDep
) -> Response:
    """Answer 204; 422 for a line that is none, for another key's, and for a key that was revoked."""
    try:
        key = TrustedKey.parse(body.line)
    except FormatError as error:
        raise Problem("invalid", str(error)) from error
    if key.key_id != key_id:
        raise Problem("invalid", f"the line is of the key {key.key_id}, the address of {key_id}")
    await service.workers.run(lambda: service.trust.put(project, key, by=by))
    return Response(status_code=204)


@router.post(_KEY + "/revoke", summary="Never believe a key again", status_code=204)
async def revoke_key(project: Administered, key_id: str, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204 or 404. It cannot be undone."""
    await service.workers.run(lambda: service.trust.revoke(project, key_id, by=by))
    return Response(status_code=204)


@router.delete(_KEY, summary="Forget a key", status_code=204)
async def remove_key(project: Administered, key_id: str, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204 or 404; 422 for a revoked key, which is remembered."""
    await service.workers.run(lambda: service.trust.remove(project, key_id, by=by))
    return Response(status_code=204)


@router.get(_TRUST + "/check", summary="Entries that could not be published today")
async def check_trust(
    project: Administered, service: ServiceDep, limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100
) -> Response:
    """Answer those that are not signed, or by nobody whom the project trusts now."""
    found = await service.workers.run(lambda: service.trust.unsound(project, limit=limit))
    return answer({"entries": found})


@router.post("/v1/{project}/promotions", summary="Let entries of another project in")
async def promote(
    project: str, body: PromotionBody, service: ServiceDep, principal: PrincipalDep, by: ActorDep
) -> Response:
    """Answer what became of each record, in their order. Needs ``read`` there and ``write`` here, kind by kind."""
    target, source = check_project(project), check_project(body.source)
    # before the records are read: who may not ask learns nothing from what is said about them
    principal.require(Scope.WRITE, target)
    principal.require(Scope.READ, source)
    try:
        records = [Promotion.from_json(value) for value in body.records]
    except SignatureError as error:
        raise Problem("signature_invalid", str(error)) from error
    for record in records:
        if (record.source, record.target) != (source, target) or source == target:
            raise Problem("invalid", f"a record from {record.source} to {record.target}: expected {source} to {target}")
        principal.require(Scope.WRITE, target, record.kind)
        principal.require(Scope.READ, source, record.kind)
    return answer({"results": [await _promoted(service, record, by) for record in records]})


async def _promoted(service: Service, record: Promotion, by: Actor) -> Json:
    outcome = await service.workers.run(lambda: service.promoting.promote(record, by=by))
    return outcome.to_json(record)
