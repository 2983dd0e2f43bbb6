"""Traces, as the rest of the server sees them: nothing at all, unless an endpoint for them is set.

The real thing is in `cache_server.otel`, which is imported only then: it needs the extra ``otel``.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import structlog

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from starlette.types import Scope

    from cache_server.settings import Settings

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables by which OpenTelemetry's own specification turns traces on."""

_NO_SPAN = contextlib.nullcontext()

_log = structlog.get_logger("cache_server.tracing")


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


def open_tracing(settings: Settings) -> Tracing:
    """Return what the settings ask for.

    Raises `ConfigurationError` if they name an endpoint and the extra is missing. OpenTelemetry's variables alone are
    often set for all programs of a machine: there it is a line in the log.
    """
    if settings.otlp_endpoint is None and (
        not any(os.environ.get(name) for name in ENDPOINTS) or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return NO_TRACING
    try:
        from cache_server.otel import OtelTracing  # noqa: PLC0415 - an extra, and nothing that others should load
    except ModuleNotFoundError as error:
        sentence = f"traces need {error.name}: install it with `pip install 'neff-cache[otel]'`"
        if settings.otlp_endpoint is not None:
            raise ConfigurationError(f"NEFF_CACHE_OTLP_ENDPOINT is set, and {sentence}") from error
        _log.warning("no traces are sent", reason=sentence)
        return NO_TRACING
    return OtelTracing(settings.otlp_endpoint)
