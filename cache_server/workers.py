"""Worker threads: where everything that blocks runs."""

from __future__ import annotations

import asyncio
import contextvars
import os
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
        # as many as leave half of the processors to everybody else, however much there is to unpack
        slow = max(1, len(os.sched_getaffinity(0)) // 2)
        self._slow_pool = ThreadPoolExecutor(slow, thread_name_prefix="neff-cache-slow")

    async def run(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """Run ``function`` on a worker thread. It is not interrupted when the caller is cancelled."""
        return await self._run(self.pool, function, *args, **kwargs)

    async def run_slow(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """Run what costs much more than it costs to ask for, such as unpacking: a step of it, on threads of its own.

        Steps of several requests take turns. As `run` otherwise.
        """
        return await self._run(self._slow_pool, function, *args, **kwargs)

    @staticmethod
    async def _run(
        pool: ThreadPoolExecutor,
        function: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        # what is logged and traced there belongs to the caller's request
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, lambda: context.run(function, *args, **kwargs))

    def surely(self, function: Callable[[], None]) -> asyncio.Future[None]:
        """Run ``function`` on a worker thread whatever happens to the caller; the future may be awaited or dropped."""
        # run() would take back what no thread has begun when its caller is cancelled
        return asyncio.shield(asyncio.wrap_future(self.pool.submit(contextvars.copy_context().run, function)))

    def close(self) -> None:
        """Wait for what runs, then end the threads."""
        self._slow_pool.shutdown(wait=True)
        self.pool.shutdown(wait=True)
