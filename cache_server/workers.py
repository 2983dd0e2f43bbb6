"""Worker threads: where everything that blocks runs."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Workers:
    """A bounded pool of threads. What is too much waits in line; nothing is dropped."""

    def __init__(self, threads: int) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="neff-cache")

    async def run(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """Run ``function`` on a worker thread. It is not interrupted when the caller is cancelled."""
        # what is logged and traced there belongs to the caller's request
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, lambda: context.run(function, *args, **kwargs))

    def surely(self, function: Callable[[], None]) -> asyncio.Future[None]:
        """Run ``function`` on a worker thread whatever happens to the caller; the future may be awaited or dropped."""
        # run() would take back what no thread has begun when its caller is cancelled
        return asyncio.shield(asyncio.wrap_future(self.pool.submit(contextvars.copy_context().run, function)))

    def close(self) -> None:
        """Wait for what runs, then end the threads."""
        self.pool.shutdown(wait=True)
