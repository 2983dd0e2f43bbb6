"""What a server does every so often beside requests; which of it is this server's is said by its role and its duty."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import structlog

from cache_server.database import entries

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Any

    from cache_server.service import Service
    from cache_server.services.collection import Outcome

_log = structlog.get_logger("cache_server")


class Round(NamedTuple):
    """One round of the periodic work: outputs that nothing named and that were removed, and what was collected."""

    swept: int
    collection: Outcome


def once(service: Service) -> Round:
    """Do one round at once, whoever has the duty: locks and jobs keep servers apart. Blocks."""
    swept = service.sweeping.sweep()
    service.audit.trim(service.settings.audit_days)
    return Round(swept, service.collection.run())


def tasks(service: Service) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield what runs until it is cancelled. A server of role ``api`` never asks for the duty, so that it never has it.

    The scrub has a thread of its own (`cache_server.services.scrubbing.Scrubbing.start`).
    """
    settings, workers = service.settings, service.workers
    yield _know_projects(service)
    yield service.usage.keep_writing(settings.usage_seconds, workers)
    yield service.tokens.keep_writing()
    yield service.authentication.warm_up()
    if settings.role != "api":
        yield _sweep_forever(service)
        yield service.collection.keep_collecting(settings.collect_seconds, workers, service.duty)


async def _know_projects(service: Service) -> None:
    def read() -> None:
        with service.database.reading() as connection:
            for row in entries.totals(connection):
                service.metrics.projects.know(row.project)

    while True:
        try:
            await service.workers.run(read)
        except Exception as error:  # noqa: BLE001 - the next round may go well; the server serves meanwhile
            _log.error("projects not counted", exc_info=error)
        await asyncio.sleep(service.settings.sweep_seconds)


async def _sweep_forever(service: Service) -> None:
    while True:
        try:
            if await service.workers.run(service.duty.is_ours):
                await service.workers.run(service.sweeping.sweep)
                await service.workers.run(service.audit.trim, service.settings.audit_days)
        except Exception as error:  # noqa: BLE001 - as above
            _log.error("sweep failed", exc_info=error)
        await asyncio.sleep(service.settings.sweep_seconds)
