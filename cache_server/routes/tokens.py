"""Tokens: made, listed and revoked by admins of the whole server; and what a caller may do, for the caller alone."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from cache_server.access import EVERY, OWN, Grant, Scope
from cache_server.errors import Problem
from cache_server.grants import MAX_GRANTS, grant_to_json
from cache_server.routes.common import ActorDep, OperatorBody, PrincipalDep, ServiceDep, answer, server_admin
from cache_server.services.tokens import HIGHEST_RATE, LOWEST_RATE, MAX_LABEL, NewToken

router = APIRouter(prefix="/admin/v1", tags=["administration"], dependencies=[Depends(server_admin)])
own_router = APIRouter(tags=["operations"])

_LONGEST_SECONDS = 100 * 366 * 86400.0


class GrantBody(OperatorBody):
    """Scopes over the projects that match a pattern, and over one kind or, with ``*``, all but ``foreign``."""

    scopes: list[Annotated[Scope, Field(strict=False)]] = Field(min_length=1)
    project: str = EVERY
    kind: str = EVERY


class TokenBody(OperatorBody):
    """A token that is wanted. ``expires_seconds``: its life; ``rate``: requests a second, in place of the setting."""

    label: str = Field(min_length=1, max_length=MAX_LABEL)
    grants: Annotated[list[GrantBody], Field(min_length=1, max_length=MAX_GRANTS)]
    expires_seconds: float | None = Field(None, gt=0, le=_LONGEST_SECONDS)
    rate: float | None = Field(None, ge=LOWEST_RATE, le=HIGHEST_RATE)

    def wanted(self) -> NewToken:
        """Return it as the service takes it."""
        grants = tuple(Grant(frozenset(grant.scopes), grant.project, grant.kind) for grant in self.grants)
        return NewToken(self.label, grants, self.expires_seconds, self.rate)


@router.post("/tokens", summary="Make a token; the answer alone shows it", status_code=201)
async def create_token(body: TokenBody, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 201 with the token and what `GET /admin/v1/tokens` says of it."""
    token, shown = await service.workers.run(service.tokens.create, body.wanted(), by=by)
    return answer({"token": token, **shown}, 201)


@router.get("/tokens", summary="All tokens, those that opened something once included")
async def list_tokens(service: ServiceDep) -> Response:
    """Answer ids, labels, grants and times; never a token."""
    return answer({"tokens": await service.workers.run(service.tokens.list)})


@router.delete("/tokens/{public_id}", summary="Revoke a token for good", status_code=204)
async def revoke_token(public_id: str, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204, also if it was revoked before; 404 if there is none of that id. All servers refuse it in a second."""
    if not await service.workers.run(service.tokens.revoke, public_id, by=by):
        raise Problem("not_found", "there is no token of that id")
    return Response(status_code=204)


@own_router.get(f"/v1/{OWN}/whoami", summary="What the caller is called here and may do")
async def whoami(principal: PrincipalDep) -> Response:
    """Answer name, id of the token if it is a stored one, and grants."""
    return answer(
        {
            "name": principal.name,
            "token": principal.token_id,
            "grants": [grant_to_json(grant) for grant in principal.grants],
        }
    )
