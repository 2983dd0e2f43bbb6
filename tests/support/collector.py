"""A collector of traces: takes OTLP over HTTP as the real ones do, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Span:
    """A span as it was sent; ids in hex."""

    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """A running collector."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)

    def take(self, body: bytes) -> None:
        """Keep what a request holds."""
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [
                    Span(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _values(span.attributes),
                        span.status.code == span.status.STATUS_CODE_ERROR,
                    )
                    for span in scope.spans
                ]

    def of(self, trace: str) -> dict[str, Span]:
        """Return the spans of a trace by name, once its request's span is there: it ends last."""
        end = time.monotonic() + HANG_SECONDS
        while not any(span.trace == trace and "/" in span.name for span in self.spans):
            assert time.monotonic() < end, f"no span of the trace {trace} came within 30 s"
            time.sleep(0.05)
        return {span.name: span for span in self.spans if span.trace == trace}


def _values(attributes: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.paths.add(self.path)
            if self.path == "/v1/traces":
                collector.take(body)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
