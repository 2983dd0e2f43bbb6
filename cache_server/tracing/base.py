"""Traces, as the rest of the server sees them: here, nothing at all. `cache_server.tracing.otel` is the real thing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from starlette.types import Scope


_NO_SPAN = contextlib.nullcontext()


class RequestSpan:
    """The span of a request that is not traced."""

    trace_id: str | None = None

    def answered(self, route: str, status: int, request_id: str) -> None:
        """Say how the request ended."""


_NO_REQUEST = contextlib.nullcontext(RequestSpan())


class Tracing:
    """No traces."""

    def request(self, scope: Scope) -> AbstractContextManager[RequestSpan]:  # noqa: ARG002 - for those that trace
        """Trace a request, as part of the caller's trace if its ``traceparent`` names one."""
        return _NO_REQUEST

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[None]:  # noqa: ARG002
        """Trace a part of the request that is served now; does nothing outside of one."""
        return _NO_SPAN

    def close(self) -> None:
        """Send what has not been sent yet."""


NO_TRACING = Tracing()
