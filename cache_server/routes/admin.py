"""What operators do: quotas, rules, collection, figures. All of it concerns the whole server, whatever it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import Field, field_validator

from cache_server.clock import rfc3339
from cache_server.collection_rules import Limit, Rules, release
from cache_server.database import entries, leases, policy, usage
from cache_server.routes.common import WHOLE, ActorDep, Count, OperatorBody, ServiceDep, answer, server_admin
from cache_server.services.collection import JOB
from cache_server.services.jobs import Jobs
from client.names import check_project

if TYPE_CHECKING:
    from cache_server.service import Service
    from client.wire import Json


router = APIRouter(prefix="/admin/v1", tags=["administration"], dependencies=[Depends(server_admin)])


class LimitBody(OperatorBody):
    """What may be held; null, or left out: any amount."""

    max_bytes: Count | None = None
    max_entries: Count | None = None

    def limit(self) -> Limit:
        """Return it as the rules take it."""
        return Limit(self.max_bytes, self.max_entries)


class RulesBody(OperatorBody):
    """What is dropped whatever room there is; see docs/collection.md."""

    unused_seconds: float | None = Field(None, gt=0)
    keep_versions: Annotated[int, Field(ge=1), WHOLE] | None = None
    oldest: dict[str, str] = Field(default_factory=dict, max_length=64)

    @field_validator("oldest")
    @classmethod
    def _are_versions(cls, value: dict[str, str]) -> dict[str, str]:
        for compiler, version in value.items():
            if release(version) is None:
                raise ValueError(f"{version!r} is no version of {compiler}: expected numbers such as 2.27.5334")
        return value

    def rules(self) -> Rules:
        """Return them as collection takes them."""
        return Rules(self.unused_seconds, self.keep_versions, self.oldest)


class CollectBody(OperatorBody):
    """Which project, all of them if nothing is said; and whether only to say what would go."""

    project: str | None = None
    dry_run: bool = False


class PauseBody(OperatorBody):
    """Why nothing is to be collected."""

    reason: str = Field(min_length=1, max_length=1000)


@router.get("/policy", summary="All quotas, rules and switches")
async def read_policy(service: ServiceDep) -> Response:
    """Answer them by project; the row of the whole server is called ``server``."""
    return answer(await service.workers.run(_policy, service))


def _policy(service: Service) -> Json:
    with service.database.reading() as connection:
        return {
            "quotas": {row.project or policy.SERVER: row.value for row in policy.rows(connection, policy.QUOTAS)},
            "rules": {row.project or policy.SERVER: row.value for row in policy.rows(connection, policy.RULES)},
            "collection_paused": policy.value(connection, policy.SWITCHES, policy.COLLECTION),
        }


@router.put("/projects/{project}/quota", summary="Set a project's quota; one without bounds removes it")
async def set_quota(project: str, body: LimitBody, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204. What is held above a lower quota stays until the next collection."""
    await service.workers.run(service.quotas.set, check_project(project), body.limit(), by=by)
    return Response(status_code=204)


@router.put("/server/quota", summary="Set what all projects together may hold before entries are collected")
async def set_server_limit(body: LimitBody, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204. Collection keeps to it; publishes are not refused for it."""
    await service.workers.run(service.quotas.set, None, body.limit(), by=by)
    return Response(status_code=204)


@router.put("/projects/{project}/rules", summary="Set a project's own rules")
async def set_rules(project: str, body: RulesBody, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204. They take the place of the server's rules, which they do not add to."""
    await service.workers.run(service.quotas.set_rules, check_project(project), body.rules(), by=by)
    return Response(status_code=204)


@router.delete("/projects/{project}/rules", summary="Let the server's rules hold for a project again")
async def remove_rules(project: str, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204."""
    await service.workers.run(service.quotas.set_rules, check_project(project), None, by=by)
    return Response(status_code=204)


@router.put("/server/rules", summary="Set the rules of projects that have none of their own")
async def set_server_rules(body: RulesBody, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204."""
    await service.workers.run(service.quotas.set_rules, None, body.rules(), by=by)
    return Response(status_code=204)


@router.delete("/server/rules", summary="Remove the rules of projects that have none of their own", status_code=204)
async def remove_server_rules(service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204."""
    await service.workers.run(service.quotas.set_rules, None, None, by=by)
    return Response(status_code=204)


@router.post("/collect", summary="Collect now, or say what would be collected")
async def collect(body: CollectBody, service: ServiceDep, by: ActorDep) -> Response:
    """Answer what went, or would go, and why. ``state`` says whether it ran to its end."""
    collection = service.collection
    project = None if body.project is None else check_project(body.project)
    if body.dry_run:
        outcome = await service.workers.run(collection.dry_run, project)
    else:
        outcome = await service.workers.run(collection.run, project, by=by)
    return answer(await service.workers.run(outcome.to_json))


@router.post("/collection/pause", summary="Stop all collection", status_code=204)
async def pause(body: PauseBody, service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204."""
    await service.workers.run(service.collection.pause, body.reason, by=by)
    return Response(status_code=204)


@router.post("/collection/resume", summary="Let collection go on", status_code=204)
async def resume(service: ServiceDep, by: ActorDep) -> Response:
    """Answer 204 also if it was not paused."""
    await service.workers.run(service.collection.resume, by=by)
    return Response(status_code=204)


@router.get("/stats", summary="Entries, bytes, uses, quotas and pins of every project")
async def stats(service: ServiceDep) -> Response:
    """Answer figures as they are now; uses of the last second may be missing."""
    return answer(await service.workers.run(_stats, service))


def _stats(service: Service) -> Json:
    with service.database.reading() as connection:
        now = service.database.now(connection)
        hits = usage.hits_by_namespace(connection)
        projects: dict[str, dict[str, Any]] = {}
        for row in entries.totals(connection):
            projects.setdefault(row.project, {"kinds": {}})["kinds"][row.kind] = {
                "entries": row.entries,
                "stored_bytes": row.stored_bytes,
                "compile_seconds": row.compile_seconds,
                "hits": hits.get((row.project, row.kind), 0),
            }
        for quota in policy.rows(connection, policy.QUOTAS):
            if quota.project is not None:
                projects.setdefault(quota.project, {"kinds": {}})["quota"] = quota.value
        for pin in policy.rows(connection, policy.PINS):
            found = projects.setdefault(str(pin.project), {"kinds": {}})
            found["pins"] = found.get("pins", 0) + 1
        finished = Jobs.finished(connection, JOB)
        return {
            "projects": projects,
            "server_quota": policy.value(connection, policy.QUOTAS, policy.SERVER),
            "leases_held": leases.count_held(connection, now),
            "collection": {
                "last_ended": None if finished is None else rfc3339(finished),
                "paused": policy.value(connection, policy.SWITCHES, policy.COLLECTION),
            },
        }
