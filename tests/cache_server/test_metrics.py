"""Metrics: each one moves, means what the reference says, and stays bounded; none is taken away when it is needed."""

from __future__ import annotations

import importlib
import math
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from cache_server import metrics_reference
from cache_server.metric_projects import OTHER
from cache_server.metrics import Metrics
from cache_server.services.scrubbing import MOST_IN_A_ROW
from tests.cache_server.harness import build
from tests.fakes.waiting import HANG_SECONDS
from tests.support.http_calls import Caller
from tests.support.postgres import postgres
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cache_server.harness import Built, InProcess
    from tests.support.servers import Server

pytestmark = pytest.mark.once

COUNTS = {
    "lookups": 10, "hits": {"memory": 5, "disk": 2, "remote": 1}, "misses": 2, "compiles": 2, "waits": 1, "errors": 1,
    "compile_seconds": 20.5, "saved_seconds": 80.25, "bytes_down": 100, "bytes_up": 200,
}  # fmt: skip
REPORT = {"schema": 1, "by_kind": {"graph": COUNTS}}
SAVED = 'neff_cache_client_saved_seconds_total{kind="graph",project="default"}'


def _samples(exposed: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in exposed.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


class _Scrapes:
    """Scrapes of one server, and the largest figure that each metric ever showed."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.largest: dict[str, float] = {}

    def now(self) -> dict[str, float]:
        found = _samples(self._caller.call("GET", "/metrics").body.decode())
        for name, value in found.items():
            metric = name.partition("{")[0]
            self.largest[metric] = max(self.largest.get(metric, 0.0), value)
        return found

    def until(self, name: str) -> float:
        """Scrape until a sample whose name begins so is more than 0."""
        end = time.monotonic() + HANG_SECONDS
        while True:
            value = max((value for sample, value in self.now().items() if sample.startswith(name)), default=0.0)
            if value > 0:
                return value
            assert time.monotonic() < end, f"{name} did not move within 30 s"
            time.sleep(0.05)


def _ask(caller: Caller, built: Built, wait_seconds: float = 0.0) -> dict[str, Any]:
    body = {"holder": {"host": "h", "pid": 1}, "wait_seconds": wait_seconds}
    return caller.call("POST", built.lease, body).json()


def _uploads(caller: Caller, scrapes: _Scrapes) -> None:
    """An upload stands in the middle, then breaks off."""
    built = build("upload", neff=b"u" * 3_000_000)
    with socket.create_connection(caller.address, timeout=HANG_SECONDS) as sock:
        head = f"PUT {built.blob()} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {caller.token}\r\n"
        sock.sendall(f"{head}Content-Length: 3000000\r\n\r\n".encode() + b"u" * 1000)
        assert scrapes.until("neff_cache_promised_bytes") <= 3_000_000
        assert scrapes.until("neff_cache_uploads_running") == 1
    scrapes.until('neff_cache_uploads_total{result="failed"}')


def _leases(caller: Caller, scrapes: _Scrapes) -> None:
    """A holder fails while somebody waits; its second release is one too many; another holder vanishes."""
    failing, dying = build("failing"), build("dying")
    assert _ask(caller, dying)["state"] == "granted"
    token = _ask(caller, failing)["token"]
    answers: list[dict[str, Any]] = []
    waiter = threading.Thread(target=lambda: answers.append(_ask(caller, failing, 20.0)))
    waiter.start()
    scrapes.until("neff_cache_waiting")
    scrapes.until("neff_cache_leases_held")
    release = {"token": token, "failure": {"class": "resource", "text": "no memory", "log": ""}}
    assert [caller.call("POST", f"{failing.lease}/release", release).status for _ in range(2)] == [200, 409]
    waiter.join(HANG_SECONDS)
    assert answers[0]["state"] == "failed"
    assert _ask(caller, dying, 20.0)["state"] == "granted"


def _upkeep(server: Server, caller: Caller, scrapes: _Scrapes) -> None:
    """A damaged output, a scrub, another one that finds damage alone, a quota that is too small, and a collection."""
    damaged = build("damaged")
    assert caller.publish(damaged).status == 201
    place = server.data / "store" / damaged.address.path
    neff = damaged.entry.outputs[0]
    (place / neff.sha256).write_bytes(b"x" * neff.size)
    assert caller.call("POST", f"{damaged.path}/suspect", {"sha256": neff.sha256}).json() == {"state": "quarantined"}
    assert caller.call("POST", "/admin/v1/scrub", {}).status == 202
    scrapes.until("neff_cache_scrub_ended_timestamp_seconds")
    for number in range(MOST_IN_A_ROW):
        each = build(f"damaged {number}", log=None)
        assert caller.publish(each).status == 201
        (server.data / "store" / each.address.path / each.entry.outputs[0].sha256).write_bytes(b"x" * neff.size)
    assert caller.call("POST", "/admin/v1/scrub", {}).status == 202
    scrapes.until("neff_cache_scrub_stopped")
    assert caller.call("PUT", "/admin/v1/projects/default/quota", {"max_bytes": 10}).status == 204
    assert caller.call("PUT", build("large").blob(), build("large").stored["model.neff"]).status == 507
    assert caller.call("POST", "/admin/v1/collect", {}).json()["state"] == "done"


def test_every_metric_of_the_reference_moves_on_a_real_server(tmp_path: Path) -> None:
    environment = {"NEFF_CACHE_LEASE_TTL_SECONDS": "10", "NEFF_CACHE_COLLECT_GRACE_SECONDS": "0"}
    with running_server(tmp_path, environment=environment) as server:
        caller = Caller(server.url, server.token)
        scrapes = _Scrapes(caller)
        built = build()
        assert caller.publish(built).status == 201
        assert caller.call("GET", built.artifact).status == 200
        assert caller.call("GET", build("missing").artifact).status == 404
        assert caller.call("POST", "/v1/default/reports", REPORT).status == 204
        keys = {"keys": [{"kind": "graph", "key": built.entry.key}]}
        assert caller.call("POST", "/v1/default/lookup", keys).status == 200
        scrapes.now()
        _uploads(caller, scrapes)
        _leases(caller, scrapes)
        _upkeep(server, caller, scrapes)
        scrapes.now()
    suffix = {"histogram": "_count"}
    still = [
        found.name
        for found in Metrics().described
        if not scrapes.largest.get(found.name + suffix.get(found.kind, ""), 0.0) > 0
    ]
    assert still == []
    documented = {found.name for found in Metrics().described}
    ends = r"(_bucket|_sum|_count)$"
    shown = {name for name in scrapes.largest if name.startswith("neff_cache_")}
    assert [name for name in shown if name not in documented and re.sub(ends, "", name) not in documented] == []


def test_the_reference_says_what_is_so() -> None:
    assert metrics_reference.reference() == metrics_reference.DOCUMENT.read_text(), (
        "run `python -m cache_server.metrics_reference --write`"
    )


def test_metrics_are_named_as_prometheus_asks_and_come_from_where_they_say() -> None:
    described = Metrics().described
    assert len({found.name for found in described}) == len(described) > 40
    for found in described:
        assert re.fullmatch(r"neff_cache_[a-z_]+", found.name), found
        assert found.name.endswith("_total") == (found.kind == "counter"), found
        assert found.kind != "histogram" or found.name.endswith("_seconds"), found
        assert found.meaning.endswith("."), found
        importlib.import_module(f"cache_server.{found.source}")


@pytest.mark.soak
def test_what_jobs_saved_is_still_known_after_a_restart(tmp_path: Path) -> None:
    for total in (80.25, 160.5):
        with running_server(tmp_path) as server:
            caller = Caller(server.url, server.token)
            assert caller.call("POST", "/v1/default/reports", REPORT).status == 204
            assert _samples(caller.call("GET", "/metrics").body.decode())[SAVED] == total


def test_servers_that_share_a_database_show_the_same_totals_and_each_its_own_requests(
    make_server: Callable[..., InProcess], tmp_path: Path
) -> None:
    with postgres().new_database() as url:
        first, second = (make_server(folder=tmp_path / name, database=url, threads=4) for name in ("first", "second"))
        first.publish(build())
        first.call("POST", "/v1/default/reports", json=REPORT)
        second.call("POST", "/v1/default/reports", json=REPORT)
        found = [_samples(server.call("GET", "/metrics").text) for server in (first, second)]
        for metric in Metrics().described:
            mine, theirs = (
                {name: value for name, value in samples.items() if name.partition("{")[0] == metric.name}
                for samples in found
            )
            assert metric.scope == "process" or mine == theirs, metric.name
        assert found[1][SAVED] == 160.5
        assert found[1]['neff_cache_entries{kind="graph",project="default"}'] == 1
        assert 'neff_cache_publishes_total{result="created"}' not in found[1]
        assert found[1]['neff_cache_database_connections_limit{pool="shared"}'] == 4
        for server in (first, second):
            server.close()


def test_a_database_that_fails_takes_away_its_own_figures_only(server: InProcess) -> None:
    server.publish(build())
    server.call("POST", "/v1/default/reports", json=REPORT)
    before = _samples(server.call("GET", "/metrics").text)
    assert before['neff_cache_readable{source="database"}'] == 1
    with server.service.database.engine.connect() as connection:
        connection.execute(text("ALTER TABLE reported RENAME TO lost"))
        connection.commit()
    found = server.call("GET", "/metrics")
    assert found.status_code == 200
    after = _samples(found.text)
    assert after['neff_cache_readable{source="database"}'] == 0
    assert after['neff_cache_readable{source="store"}'] == 1
    assert after['neff_cache_publishes_total{result="created"}'] == 1
    assert after['neff_cache_database_calls_total{call="read",outcome="error"}'] >= 1
    entries = 'neff_cache_entries{kind="graph",project="default"}'
    assert before[entries] == 1
    assert {SAVED, entries}.isdisjoint(after)


def test_a_store_that_fails_is_seen_in_the_metrics(server: InProcess) -> None:
    built = build()
    server.publish(built)
    path = server.output_path(built)
    path.unlink()
    path.symlink_to(path.name)
    assert server.call("GET", built.artifact).status_code == 503
    found = _samples(server.call("GET", "/metrics").text)
    assert found['neff_cache_store_calls_total{call="open_output",outcome="error"}'] == 1
    assert found['neff_cache_errors_total{name="store_unavailable"}'] == 1


def test_no_number_of_projects_makes_more_series_than_the_settings_allow(
    make_server: Callable[..., InProcess],
) -> None:
    server = make_server(metrics_projects=4)
    for number in range(8):
        assert server.publish(build(project=f"team-{number}")).status_code == 201
        server.call("GET", build(project=f"team-{number}").artifact)
        server.call("POST", f"/v1/made-up-{number}/reports", json=REPORT)
    found = server.call("GET", "/metrics").text
    assert set(re.findall(r'project="([^"]+)"', found)) == {"team-0", "team-1", "team-2", "team-3", OTHER}
    samples = _samples(found)
    assert samples[f'neff_cache_entries{{kind="graph",project="{OTHER}"}}'] == 4
    assert samples[f'neff_cache_lookups_total{{kind="graph",project="{OTHER}",result="hit"}}'] == 4


def test_projects_that_are_only_reported_on_leave_labels_to_those_with_entries(
    make_server: Callable[..., InProcess],
) -> None:
    server = make_server(metrics_projects=4)
    for number in range(8):
        server.call("POST", f"/v1/made-up-{number}/reports", json=REPORT)
    server.call("GET", "/metrics")
    server.publish(build(project="real"))
    server.call("POST", "/v1/real/reports", json=REPORT)
    samples = _samples(server.call("GET", "/metrics").text)
    assert samples['neff_cache_client_lookups_total{kind="graph",project="real"}'] == 10
    assert sum(name.startswith("neff_cache_client_lookups_total{") for name in samples) == 3


def test_a_change_that_is_rolled_back_is_not_counted(server: InProcess) -> None:
    service = server.service

    def fail() -> None:
        with service.database.transaction() as session:
            service.audit.record(session, actor="a", action="entry.delete")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert 'action="entry.delete"' not in server.call("GET", "/metrics").text
    built = build()
    server.publish(built)
    server.call("DELETE", built.path)
    samples = _samples(server.call("GET", "/metrics").text)
    assert samples['neff_cache_changes_total{action="entry.delete"}'] == 1
    assert samples['neff_cache_database_calls_total{call="transaction",outcome="refused"}'] == 1


def test_compile_seconds_count_where_they_were_spent_and_once(server: InProcess) -> None:
    built = build()
    for _ in range(2):
        server.publish(built)
    samples = _samples(server.call("GET", "/metrics").text)
    of = '{kind="graph",project="default"}'
    assert samples[f"neff_cache_published_compile_seconds_total{of}"] == 12.5
    assert samples[f"neff_cache_stored_compile_seconds{of}"] == 12.5
    assert samples['neff_cache_publishes_total{result="stood_before"}'] == 1
    assert math.isfinite(samples["neff_cache_store_free_bytes"])
