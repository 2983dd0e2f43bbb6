"""Leases: ask or wait, heartbeat, give back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response
from pydantic import Field

from cache_server.access import Scope
from cache_server.address import Address
from cache_server.errors import Problem
from cache_server.http.asgi import watching
from cache_server.lease_rules import LeaseRequest
from cache_server.routes.common import Count, JobBody, PrincipalDep, ServiceDep, addressed, answer
from client.errors import Failure
from client.names import Kind
from client.wire import Holder, lease_answer_to_json

router = APIRouter(tags=["leases"])

MAX_WAIT = 25.0
_PATH = "/v1/{project}/{kind}/leases/{key}"
_MAX_TOKEN = 256
MAX_OWNER = 255
"""Characters that the database holds of whose lease it is."""


class HolderBody(JobBody):
    """Who asks: shown to those who wait."""

    host: str = Field(max_length=255)
    pid: Count
    rank: Count | None = None
    label: str = Field("", max_length=255)


class AskBody(JobBody):
    """A request for the right to compile, or for news of whoever has it."""

    holder: HolderBody
    wait_seconds: float = Field(0, ge=0, le=MAX_WAIT)
    retry_failed: bool = False
    seen_generation: Count | None = None
    may_publish: bool = True


class HeartbeatBody(JobBody):
    """A heartbeat."""

    token: str = Field(max_length=_MAX_TOKEN)


class ReleaseBody(HeartbeatBody):
    """The end of a lease, with the failure if there was one."""

    failure: dict[str, Any] | None = None


def _leasable(address: Address) -> Address:
    if address.kind is Kind.FOREIGN:
        raise Problem(
            "invalid", "entries of kind foreign are mirrored, never compiled here: there are no leases on them"
        )
    return address


async def _askable(address: Annotated[Address, Depends(addressed(Scope.READ))]) -> Address:
    return _leasable(address)


async def _holdable(address: Annotated[Address, Depends(addressed(Scope.LEASE))]) -> Address:
    return _leasable(address)


Askable = Annotated[Address, Depends(_askable)]
Holdable = Annotated[Address, Depends(_holdable)]


@router.post(_PATH, summary="Ask for the right to compile a key, or wait for its holder")
async def ask(
    address: Askable, service: ServiceDep, principal: PrincipalDep, body: AskBody, request: Request
) -> Response:
    """Answer ``ready``, ``granted``, ``wait``, ``failed`` or ``denied``; never 403 for whoever may read."""
    may_publish = body.may_publish and all(
        principal.may(scope, address.project, address.kind) for scope in (Scope.WRITE, Scope.LEASE)
    )
    wanted = LeaseRequest(
        holder=Holder(body.holder.host, body.holder.pid, body.holder.rank, body.holder.label),
        retry_failed=body.retry_failed,
        seen_generation=body.seen_generation,
        may_publish=may_publish,
        owner=(principal.token_id or principal.name)[:MAX_OWNER],
    )
    async with watching(request.receive) as gone:
        found = await service.polling.ask(address, wanted, body.wait_seconds, gone)
    return answer(lease_answer_to_json(found))


@router.patch(_PATH, summary="Heartbeat")
async def renew(address: Holdable, service: ServiceDep, body: HeartbeatBody) -> Response:
    """Answer 200 with the time to live, or 409 ``lease_lost``."""
    lease = await service.workers.run(service.leasing.renew, address, body.token)
    return answer({"generation": lease.generation, "ttl_seconds": lease.ttl_seconds})


@router.post(_PATH + "/release", summary="Give a lease back")
async def release(address: Holdable, service: ServiceDep, body: Annotated[ReleaseBody, Body()]) -> Response:
    """Answer 200, or 409 ``lease_lost``. A failure is told to those who wait."""
    failure = None if body.failure is None else Failure.from_json(body.failure)
    await service.workers.run(service.leasing.release, address, body.token, failure)
    return answer({"state": "released"})
