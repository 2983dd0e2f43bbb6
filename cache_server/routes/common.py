"""What the JSON routes share: the service, the caller, checked addresses, and answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from cache_server.access import Actor, Principal, Scope
from cache_server.address import Address
from cache_server.errors import Problem
from cache_server.service import Service
from client.names import Kind, check_project
from client.wire import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""To JSON 1.0 is the integer 1, and some writers know only floats."""

Count = Annotated[int, Field(ge=0, le=MAX_INTEGER), WHOLE]


class JobBody(BaseModel):
    """A body that jobs send. Types are taken as they are, nothing is guessed; a newer client may add members."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class OperatorBody(JobBody):
    """A body that operators send: a member that is not known here is a mistake that must not pass unseen."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _can_be_sent(cls, value: Any) -> Any:
        # half a surrogate pair that is stored could never be shown again: `GET /admin/v1/audit` would fail for good
        try:
            # what is no object, a body that is not JSON for instance, is refused by what comes after
            json.dumps(value if isinstance(value, dict) else None, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half a surrogate pair") from None
        return value


async def _service(request: Request) -> Service:
    return cast("Service", request.app.state.service)


async def _principal(request: Request) -> Principal:
    return cast("Principal", request.scope["principal"])


async def _actor(request: Request) -> Actor:
    return Actor(request.scope["principal"].shown, request.scope["passage"].request_id)


ServiceDep = Annotated[Service, Depends(_service)]
PrincipalDep = Annotated[Principal, Depends(_principal)]
ActorDep = Annotated[Actor, Depends(_actor)]


def addressed(scope: Scope) -> Callable[..., Awaitable[Address]]:
    """Return a dependency that checks the path's names, then the caller's right on them."""

    async def check(project: str, kind: str, key: str, principal: PrincipalDep) -> Address:
        address = Address.parse(project, kind, key)
        principal.require(scope, address.project, address.kind)
        return address

    return check


def in_project(scope: Scope) -> Callable[..., Awaitable[str]]:
    """Return a dependency that checks the path's project, then the caller's right on it."""

    async def check(project: str, principal: PrincipalDep) -> str:
        check_project(project)
        principal.require(scope, project)
        return project

    return check


async def server_admin(principal: PrincipalDep) -> None:
    """Let admins of all projects through: one of some projects must not decide about the whole server."""
    if not principal.has(Scope.ADMIN):
        raise Problem("forbidden", "this needs scope admin on all projects")


def visible_kinds(principal: Principal, project: str) -> frozenset[str]:
    """Return the kinds of the project that the caller may read."""
    return frozenset(str(kind) for kind in Kind if principal.may(Scope.READ, project, kind))


def answer(value: Any, status: int = 200) -> JSONResponse:
    """Return JSON that this package made itself: not validated a second time."""
    return JSONResponse(value, status)
