"""Traces by OpenTelemetry, sent by OTLP over HTTP. Imported only where they are wanted.

Spans are written by hand where time goes: the request, calls of the store, transactions, a wait for a lease, a publish.
Sampling, headers, time limits and resource attributes are set by OpenTelemetry's own variables. Paths of artifacts are
in a span, tokens and queries never are.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cache_server.errors import Problem
from cache_server.http.asgi import header
from cache_server.tracing.base import RequestSpan, Tracing
from client import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Scope

FLUSH_SECONDS = 5.0
"""How long a server that stops waits for its last spans to be taken."""

_TRACES_PATH = "/v1/traces"
_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
_SERVER_FAULT = 500


class OtelTracing(Tracing):
    """Spans of one server. Two servers in a process do not mix: nothing global is set."""

    def __init__(self, endpoint: str | None) -> None:
        """``endpoint``: the collector's address, as OTEL_EXPORTER_OTLP_ENDPOINT; None: what that variable says."""
        exporter = OTLPSpanExporter(None if endpoint is None else endpoint.rstrip("/") + _TRACES_PATH)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("cache_server", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @contextlib.contextmanager
    def request(self, scope: Scope) -> Iterator[RequestSpan]:
        """Trace a request; probes and scrapes are none that anybody follows."""
        if scope["path"] in _UNTRACED:
            yield RequestSpan()
            return
        carrier = {
            name: value for name in ("traceparent", "tracestate") if (value := header(scope, name.encode())) is not None
        }
        context = self._propagator.extract(carrier)
        method = scope["method"]
        with self._tracer.start_as_current_span(method, context, SpanKind.SERVER, record_exception=False) as span:
            span.set_attribute("http.request.method", method)
            span.set_attribute("url.path", scope["path"])
            yield _OtelRequestSpan(span, method)

    @contextlib.contextmanager
    def span(self, name: str, **attributes: str | float) -> Iterator[None]:
        """Trace a part of a request. Periodic work has no request, and gives no spans."""
        if not trace.get_current_span().is_recording():
            yield
            return
        with self._tracer.start_as_current_span(
            name,
            attributes={f"neff_cache.{key}": value for key, value in attributes.items()},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Problem as problem:
                # a no by the rules: no fault of what was called
                span.set_attribute("neff_cache.refused", problem.kind.name)
                raise
            except Exception as error:
                span.set_status(StatusCode.ERROR, type(error).__name__)
                raise

    def close(self) -> None:
        """Send what is left, within `FLUSH_SECONDS`."""
        # the library's own limits do not hold while a request is on its way to a collector that is deaf
        last = threading.Thread(target=self._provider.shutdown, name="neff-cache-traces", daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)


class _OtelRequestSpan(RequestSpan):
    def __init__(self, span: trace.Span, method: str) -> None:
        self._span = span
        self._method = method
        self.trace_id = trace.format_trace_id(span.get_span_context().trace_id)

    def answered(self, route: str, status: int, request_id: str) -> None:
        """Name the span by its route: a name with a key in it would be another one each time."""
        span = self._span
        span.update_name(f"{self._method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("neff_cache.request_id", request_id)
        if status == 0 or status >= _SERVER_FAULT:
            span.set_status(StatusCode.ERROR)


def _resource() -> Resource:
    """Return what the spans are of; OpenTelemetry's own variables win."""
    own = {"service.version": __version__}
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not named:
        own["service.name"] = "neff-cache"
    return Resource.create(own)
