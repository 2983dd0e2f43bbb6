"""Which traces the settings ask for: none, unless an endpoint for them is set.

`cache_server.tracing.otel` is imported only then: it needs the extra ``otel``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog

from cache_server.tracing.base import NO_TRACING
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from cache_server.settings import Settings
    from cache_server.tracing.base import Tracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables by which OpenTelemetry's own specification turns traces on."""

_log = structlog.get_logger("cache_server.tracing")


def open_tracing(settings: Settings) -> Tracing:
    """Return what the settings ask for.

    Raises `ConfigurationError` if they name an endpoint and the extra is missing. OpenTelemetry's variables alone are
    often set for all programs of a machine: there it is a line in the log.
    """
    if settings.otlp_endpoint is None and (
        not any(os.environ.get(name, "").strip() for name in ENDPOINTS)
        or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return NO_TRACING
    try:
        from cache_server.tracing.otel import OtelTracing  # noqa: PLC0415 - an extra, and nothing that others should load
    except ModuleNotFoundError as error:
        sentence = f"traces need {error.name}: install it with `pip install 'neff-cache[otel]'`"
        if settings.otlp_endpoint is not None:
            raise ConfigurationError(f"NEFF_CACHE_OTLP_ENDPOINT is set, and {sentence}") from error
        _log.warning("no traces are sent", reason=sentence)
        return NO_TRACING
    return OtelTracing(settings.otlp_endpoint)
