"""Traces: sent to a real receiver where one is named, and nothing of them loaded anywhere else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from cache_server.settings import Settings
from cache_server.tracing import otel
from cache_server.tracing.base import NO_TRACING
from cache_server.tracing.open import ENDPOINTS, open_tracing
from client.errors import ConfigurationError
from tests.cache_server.harness import TOKEN, build
from tests.fakes.waiting import HANG_SECONDS
from tests.support.collector import running_collector
from tests.support.http_calls import Caller
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cache_server.harness import InProcess
    from tests.support.collector import Collector

pytestmark = pytest.mark.once

CALLERS = "00-{trace}-00f067aa0ba902b7-01"
FOR_TESTS = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture
def traced(collector: Collector, make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    for name, value in FOR_TESTS.items():
        monkeypatch.setenv(name, value)
    return make_server(otlp_endpoint=collector.url)


def _trace(number: int) -> tuple[str, dict[str, str]]:
    trace = f"{number:032x}"
    return trace, {"traceparent": CALLERS.format(trace=trace)}


def test_a_publish_is_one_trace_from_the_callers_span_down_to_the_store(
    traced: InProcess, collector: Collector
) -> None:
    built = build()
    traced.upload(built)
    trace, headers = _trace(1)
    answer = traced.call("PUT", built.path, json=built.entry.to_json(), headers=headers)
    assert answer.status_code == 201
    spans = collector.of(trace)
    request = spans["PUT /v1/{project}/{kind}/entries/{key}"]
    assert request.parent == "00f067aa0ba902b7"
    assert request.attributes["http.response.status_code"] == 201
    assert request.attributes["neff_cache.request_id"] == answer.headers["x-request-id"]
    assert spans["publish"].parent == request.id
    assert spans["publish"].attributes == {"neff_cache.key": built.entry.key}
    # what runs on a worker thread is part of it too
    assert spans["store.create_entry"].parent == spans["database.transaction"].parent == spans["publish"].id
    assert collector.resource["service.name"] == "neff-cache"


def test_a_wait_for_a_lease_is_seen_in_the_trace(traced: InProcess, collector: Collector) -> None:
    built = build()
    token = traced.ask(built)["token"]
    trace, headers = _trace(2)
    body = {"holder": {"host": "h", "pid": 1}, "wait_seconds": 20}
    answer = traced.send("POST", built.lease, json=body, headers=headers)
    traced.waiting()
    traced.call("POST", f"{built.lease}/release", json={"token": token})
    assert answer.result(HANG_SECONDS).json()["state"] == "granted"
    spans = collector.of(trace)
    assert spans["lease.wait"].parent == spans["POST /v1/{project}/{kind}/leases/{key}"].id
    assert spans["database.transaction"].parent == spans["lease.wait"].id


def test_faults_are_marked_and_refusals_are_not(traced: InProcess, collector: Collector) -> None:
    built = build()
    traced.publish(built)
    path = traced.output_path(built)
    path.unlink()
    path.symlink_to(path.name)
    trace, headers = _trace(3)
    assert traced.call("GET", built.artifact, headers=headers).status_code == 503
    spans = collector.of(trace)
    assert spans["store.open_output"].failed
    assert spans["GET /v1/{project}/{kind}/artifacts/{key}"].failed
    trace, headers = _trace(4)
    unsound = {**build("b").entry.to_json(), "key": "0" * 64}
    assert traced.call("PUT", built.path, json=unsound, headers=headers).status_code == 422
    spans = collector.of(trace)
    assert not any(span.failed for span in spans.values())
    assert spans["publish"].attributes["neff_cache.refused"] in {"invalid", "wrong_key"}


def test_no_secret_is_in_a_span(traced: InProcess, collector: Collector) -> None:
    trace, headers = _trace(5)
    traced.call("GET", f"{build().artifact}?token=query-secret", headers=headers)
    spans = collector.of(trace)
    text = json.dumps([vars(span) for span in spans.values()])
    assert build().entry.key in text
    assert not any(secret in text for secret in (TOKEN, "query-secret"))


def test_probes_and_periodic_work_fill_no_collector(traced: InProcess, collector: Collector) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert traced.call("GET", path).status_code == 200
    traced.service.collection.run()
    trace, headers = _trace(6)
    traced.call("GET", build().artifact, headers=headers)
    collector.of(trace)
    assert {span.trace for span in collector.spans} == {trace}


def test_a_server_sends_its_last_spans_before_it_ends(tmp_path: Path, collector: Collector) -> None:
    """OpenTelemetry's own variable turns traces on; its delay is longer than the server lives."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    trace, headers = _trace(7)
    with running_server(tmp_path, environment=environment) as server:
        assert Caller(server.url, server.token).call("GET", build().artifact, headers=headers).status == 404
    # nothing else is sent: no metrics, logs or spans of the web framework
    assert [(span.trace, span.name) for span in collector.spans] == [
        (trace, "GET /v1/{project}/{kind}/artifacts/{key}")
    ]
    assert collector.paths == {"/v1/traces"}


def test_a_collector_that_is_gone_costs_requests_nothing(
    make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with running_collector() as gone:
        url = gone.url
    server = make_server(otlp_endpoint=url)
    built = build()
    assert server.publish(built).status_code == 201
    assert server.call("GET", built.artifact).content == built.stored["model.neff"]


def test_a_collector_that_is_deaf_does_not_hold_up_a_stop(
    make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    monkeypatch.setattr(otel, "FLUSH_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        server = make_server(otlp_endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        server.call("GET", build().artifact)
        stop = threading.Thread(target=server.close, daemon=True)
        stop.start()
        stop.join(HANG_SECONDS)
        assert not stop.is_alive()


def _without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [name for name in sys.modules if name.startswith(("opentelemetry", "cache_server.tracing.otel"))]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)


def test_an_endpoint_without_the_extra_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_opentelemetry(monkeypatch)
    with pytest.raises(ConfigurationError, match=r"pip install 'neff-cache\[otel\]'"):
        open_tracing(Settings(data_dir=tmp_path, otlp_endpoint="http://127.0.0.1:4318"))
    # a variable that is set for every program of a machine stops none of them
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:4318")
    with structlog.testing.capture_logs() as lines:
        assert open_tracing(Settings(data_dir=tmp_path)) is NO_TRACING
    assert [(line["event"], line["log_level"]) for line in lines] == [("no traces are sent", "warning")]


@pytest.mark.soak
def test_nothing_of_opentelemetry_is_loaded_unless_it_is_asked_for(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from cache_server.app import create_app\n"
        "from cache_server.settings import Settings\n"
        f"create_app(Settings(data_dir={str(tmp_path)!r}))\n"
        # the interfaces alone, which do nothing, are loaded by newer web frameworks
        "parts = ('opentelemetry.sdk', 'opentelemetry.exporter', 'cache_server.tracing.otel')\n"
        "print(sorted(name for name in sys.modules if name.startswith(parts)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["[]"]), ended.stderr


def test_two_servers_of_a_process_keep_their_traces_apart(
    make_server: Callable[..., InProcess], tmp_path: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with running_collector() as other:
        first = make_server(otlp_endpoint=collector.url)
        second = make_server(folder=tmp_path / "second", otlp_endpoint=other.url)
        ids = []
        ready = threading.Barrier(2)

        def call(server: InProcess, number: int) -> None:
            trace, headers = _trace(number)
            ids.append(trace)
            ready.wait(HANG_SECONDS)
            server.call("GET", build().artifact, headers=headers)

        threads = [threading.Thread(target=call, args=pair) for pair in ((first, 8), (second, 9))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_SECONDS)
        collector.of(_trace(8)[0])
        other.of(_trace(9)[0])
        assert {span.trace for span in collector.spans}.isdisjoint({span.trace for span in other.spans})
