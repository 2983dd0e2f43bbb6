from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from client.names import Kind
from client.wire import Entry
from tests.cache_server.harness import build, problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import FakeClock, InProcess


def _key(built: Any) -> dict[str, str]:
    return {"kind": str(built.entry.kind), "key": built.entry.key}


def test_many_keys_are_looked_up_in_one_request(server: InProcess) -> None:
    stored = [build(f"stored {number}") for number in range(3)]
    held, missing = build("held"), build("missing")
    for built in stored:
        server.publish(built)
    server.ask(held)
    wanted = [missing, *stored, held, stored[0]]
    found = server.call("POST", "/v1/default/lookup", json={"keys": [_key(built) for built in wanted]}).json()
    assert [Entry.from_json(value) for value in found["found"]] == [built.entry for built in stored]
    assert found["missing"] == [_key(missing), _key(held)]
    assert found["leased"] == [_key(held)]


def test_a_lookup_of_thousands_of_keys_is_answered(server: InProcess) -> None:
    built = build()
    server.publish(built)
    keys = [{"kind": "graph", "key": f"{number:064x}"} for number in range(4095)]
    found = server.call("POST", "/v1/default/lookup", json={"keys": [*keys, _key(built)]}).json()
    assert len(found["found"]) == 1
    assert found["missing"] == keys
    too_many = [*keys, *keys]
    assert problem(server.call("POST", "/v1/default/lookup", json={"keys": too_many})) == (422, "invalid")


def test_a_lookup_never_crosses_kinds_or_projects(server: InProcess) -> None:
    built = build()
    server.publish(built)
    for project, kind in (("default", "eager"), ("other", "graph")):
        body = {"keys": [{"kind": kind, "key": built.entry.key}]}
        assert server.call("POST", f"/v1/{project}/lookup", json=body).json()["found"] == []


def test_a_lease_that_ran_out_is_not_shown_as_leased(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    built = build()
    server.ask(built)
    clock.now += 31
    assert server.call("POST", "/v1/default/lookup", json={"keys": [_key(built)]}).json()["leased"] == []


@pytest.mark.parametrize(
    "body", [{}, {"keys": None}, {"keys": [{"kind": "graph"}]}, {"keys": [{"kind": "x", "key": "0" * 64}]},
             {"keys": [{"kind": "graph", "key": "0"}]}]
)  # fmt: skip
def test_a_lookup_that_names_no_keys_is_refused(server: InProcess, body: Any) -> None:
    assert problem(server.call("POST", "/v1/default/lookup", json=body)) == (422, "invalid")


def test_a_plan_comes_back_as_it_was_stored(server: InProcess) -> None:
    lines = "".join(
        json.dumps(
            {"schema": 1, "project": "default", **_key(build(name)), "label": "l\u2028", "compile_seconds": 1},
            ensure_ascii=False,
        )
        + "\n"
        for name in "ab"
    )
    path = "/v1/default/plans/llama-8b"
    assert problem(server.call("GET", path)) == (404, "not_found")
    assert server.call("PUT", path, content=lines).status_code == 201
    assert server.call("GET", path).text == lines
    assert server.call("PUT", path, content="").status_code == 200
    assert server.call("GET", path).text == ""
    assert server.call("GET", "/v1/other/plans/llama-8b").status_code == 404


@pytest.mark.parametrize("body", ["x", "[]", '{"kind": "graph"}', '{"kind": "x", "key": "' + "0" * 64 + '"}', b"\xff"])
def test_a_plan_that_names_no_entries_is_refused(server: InProcess, body: Any) -> None:
    assert problem(server.call("PUT", "/v1/default/plans/p", content=body)) == (422, "invalid")
    assert server.call("GET", "/v1/default/plans/p").status_code == 404


def test_a_plan_has_a_name_and_nothing_else(server: InProcess) -> None:
    for name in ("Bad", "-x", "a" * 65):
        assert problem(server.call("PUT", f"/v1/default/plans/{name}", content="")) == (422, "invalid")


@pytest.mark.parametrize("path", ["/v1/default/plans/p", "/v1/default/lookup", "/v1/default/reports"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_not_even_read_to_its_end(
    make_server: Callable[..., InProcess], path: str, *, chunked: bool
) -> None:
    server = make_server(max_entry_bytes=1000, max_batch_bytes=1000)
    method = "PUT" if "plans" in path else "POST"
    messages = [{"type": "http.request", "body": b"x" * 600, "more_body": True} for _ in range(2)]
    status, body = server.raw(method, path, messages, {} if chunked else {"content-length": "5000"})
    assert (status, b"too_large" in body) == (413, True)


SUMMARY = {
    "schema": 1,
    "by_kind": {
        "graph": {"lookups": 10, "hits": {"memory": 5, "disk": 2, "remote": 1}, "misses": 2, "compiles": 2,
                  "compile_seconds": 20.5, "saved_seconds": 80.25, "bytes_down": 100, "bytes_up": 200},
    },
}  # fmt: skip


def test_what_clients_report_adds_up_and_is_shown(server: InProcess) -> None:
    for _ in range(2):
        assert server.call("POST", "/v1/default/reports", json=SUMMARY).status_code == 204
    text = server.call("GET", "/metrics").text
    for line in (
        'neff_cache_client_hits_total{kind="graph",project="default",tier="memory"} 10.0',
        'neff_cache_client_saved_seconds_total{kind="graph",project="default"} 160.5',
        'neff_cache_client_compiles_total{kind="graph",project="default"} 4.0',
    ):
        assert line in text, line
    assert "160.5 seconds of compiling saved" in server.call("GET", "/").text


@pytest.mark.parametrize(
    "counts", [[], {"lookups": -1}, {"lookups": "1"}, {"lookups": True}, {"hits": []}, {"lookups": 1e999}]
)
def test_a_report_that_is_none_counts_for_nothing(server: InProcess, counts: Any) -> None:
    body = json.dumps({"by_kind": {"eager": {"lookups": 5}, "graph": counts}})
    answer = server.call("POST", "/v1/default/reports", content=body, headers={"Content-Type": "application/json"})
    assert problem(answer) == (422, "invalid")
    assert "neff_cache_client_lookups_total{" not in server.call("GET", "/metrics").text


def test_metrics_tell_hits_from_misses_by_project_and_kind(server: InProcess) -> None:
    built = build()
    server.publish(built)
    server.call("GET", built.artifact)
    server.call("GET", build("other").artifact)
    for number in range(50):
        server.call("GET", f"/v1/made-up-{number}/graph/artifacts/{'0' * 64}")
        server.call("GET", f"/nowhere/{number}")
    server.ask(build("held"))
    text = server.call("GET", "/metrics").text
    for line in (
        'neff_cache_lookups_total{kind="graph",project="default",result="hit"} 1.0',
        'neff_cache_lookups_total{kind="graph",project="default",result="miss"} 1.0',
        'neff_cache_lookups_total{kind="graph",project="(other)",result="miss"} 50.0',
        'neff_cache_requests_total{route="none",status="404"} 50.0',
        'neff_cache_errors_total{name="not_found"} 101.0',
        'neff_cache_entries{kind="graph",project="default"} 1.0',
        "neff_cache_leases_held 1.0",
        'neff_cache_publishes_total{result="created"} 1.0',
        'neff_cache_lease_answers_total{state="granted"} 1.0',
        f"neff_cache_received_bytes_total {sum(map(len, built.stored.values()))}.0",
        f"neff_cache_sent_bytes_total {len(built.stored['model.neff'])}.0",
        'neff_cache_store_seconds_count{call="commit"} 2.0',
    ):
        assert line in text, line
    assert "made-up" not in text


def test_two_servers_in_one_process_do_not_mix_their_metrics(
    make_server: Callable[..., InProcess], tmp_path: Any
) -> None:
    first, second = make_server(), make_server(folder=tmp_path / "second")
    first.publish(build())
    assert "neff_cache_publishes_total{" not in second.call("GET", "/metrics").text


def test_the_page_shows_real_figures_and_escapes_nothing_into_markup(server: InProcess) -> None:
    server.publish(build())
    server.publish(build(kind=Kind.EAGER))
    text = server.call("GET", "/").text
    assert "<td>default<td>eager<td>1<td>" in text
    assert "<td>default<td>graph<td>1<td>" in text
    assert "25.0 s" not in text
    assert "12.5 s" in text


def test_the_interface_describes_itself(server: InProcess) -> None:
    document = server.call("GET", "/openapi.json", token=None).json()
    assert "/v1/{project}/{kind}/leases/{key}" in document["paths"]
    assert server.call("GET", "/docs", token=None).status_code == 200


def test_a_request_id_comes_back_and_is_never_echoed_unchecked(server: InProcess) -> None:
    answer = server.call("GET", build().artifact, headers={"X-Request-Id": "job-7.rank_3"})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "job-7.rank_3"
    for bad in ("a b", "x" * 65, "<script>", ""):
        answer = server.call("GET", "/healthz", headers={"X-Request-Id": bad})
        assert answer.headers["x-request-id"] not in {bad, ""}
