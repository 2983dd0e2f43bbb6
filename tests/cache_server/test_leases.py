from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from client.names import Kind
from client.wire import Entry
from tests.cache_server.harness import TOKEN, build, problem
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import Built, FakeClock, InProcess

DIAGNOSIS = {"class": "diagnosis", "text": "NCC_EXTP004", "log": "too many instructions"}
RESOURCE = {"class": "resource", "text": "killed by signal 9", "log": ""}


def _renew(server: InProcess, built: Built, token: str) -> Any:
    return server.call("PATCH", built.lease, json={"token": token})


def _release(server: InProcess, built: Built, token: str, failure: dict[str, str] | None = None) -> Any:
    return server.call("POST", f"{built.lease}/release", json={"token": token, "failure": failure})


def _fail(server: InProcess, built: Built, failure: dict[str, str], **asked: Any) -> int:
    """Take the lease and give it back with a failure; return its generation."""
    granted = server.ask(built, **asked)
    assert granted["state"] == "granted", granted
    assert _release(server, built, granted["token"], failure).status_code == 200
    return int(granted["generation"])


def test_one_compiles_and_the_others_are_told_who(server: InProcess) -> None:
    built = build()
    granted = server.ask(built, host="first")
    assert granted["state"] == "granted"
    assert granted["ttl_seconds"] == 30
    waiting = server.ask(built, host="second")
    assert waiting["state"] == "wait"
    assert waiting["generation"] == granted["generation"]
    assert waiting["holder"]["host"] == "first"
    assert 29 < waiting["expires_in"] <= 30


def test_of_many_who_ask_at_once_one_is_granted(server: InProcess) -> None:
    built = build()
    answers = [server.send_ask(built, host=f"h{number}") for number in range(32)]
    states = sorted(answer.result(HANG_SECONDS).json()["state"] for answer in answers)
    assert states == ["granted"] + ["wait"] * 31


def test_a_published_entry_answers_the_request_for_its_lease(server: InProcess) -> None:
    built = build()
    server.publish(built)
    answer = server.ask(built)
    assert answer["state"] == "ready"
    assert Entry.from_json(answer["entry"]) == built.entry


def test_waiters_are_woken_by_the_publish_and_not_by_a_clock(server: InProcess) -> None:
    built = build()
    server.ask(built, host="holder")
    server.upload(built)
    answers = [server.send_ask(built, wait_seconds=25) for _ in range(16)]
    server.waiting(16)
    assert server.call("PUT", built.path, json=built.entry.to_json()).status_code == 201
    # the 25 s of the poll are far beyond the time-out of result()
    for answer in answers:
        found = answer.result(HANG_SECONDS).json()
        assert found["state"] == "ready"
        assert Entry.from_json(found["entry"]) == built.entry


def test_waiting_holds_neither_a_thread_nor_a_connection(make_server: Callable[..., InProcess]) -> None:
    server = make_server(threads=2)
    built, other = build("a"), build("b")
    server.ask(built)
    before = threading.active_count()
    answers = [server.send_ask(built, wait_seconds=25) for _ in range(100)]
    server.waiting(100)
    assert threading.active_count() <= before + 2
    assert server.publish(other).status_code == 201
    assert server.publish(built).status_code == 201
    assert {answer.result(HANG_SECONDS).json()["state"] for answer in answers} == {"ready"}


def test_waiters_learn_the_failure_with_its_log_at_once(server: InProcess) -> None:
    built = build()
    granted = server.ask(built, host="holder")
    answer = server.send_ask(built, wait_seconds=25)
    server.waiting()
    _release(server, built, granted["token"], RESOURCE)
    found = answer.result(HANG_SECONDS).json()
    assert found == {"state": "failed", **RESOURCE, "expires_in": 0.0, "replayed": False, "host": "holder"}


def test_a_waiter_that_polls_again_learns_the_failure_it_waited_for(server: InProcess) -> None:
    built = build()
    granted = server.ask(built)
    seen = server.ask(built)["generation"]
    _release(server, built, granted["token"], RESOURCE)
    assert server.ask(built, seen_generation=seen)["state"] == "failed"
    # whoever did not wait for it may try: it was no diagnosis
    assert server.ask(built)["state"] == "granted"


def test_a_lease_given_back_without_failure_goes_to_a_waiter_at_once(server: InProcess) -> None:
    built = build()
    granted = server.ask(built)
    answer = server.send_ask(built, wait_seconds=25)
    server.waiting()
    _release(server, built, granted["token"])
    found = answer.result(HANG_SECONDS).json()
    assert found["state"] == "granted"
    assert found["generation"] > granted["generation"]


def test_a_holder_that_falls_silent_is_taken_over(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    built = build()
    first = server.ask(built, host="first")
    clock.now += 29
    assert server.ask(built)["state"] == "wait"
    clock.now += 2
    second = server.ask(built, host="second")
    assert second["state"] == "granted"
    assert second["generation"] > first["generation"]
    assert problem(_renew(server, built, first["token"])) == (409, "lease_lost")
    assert problem(_release(server, built, first["token"], DIAGNOSIS)) == (409, "lease_lost")
    assert server.ask(built)["holder"]["host"] == "second"


def test_a_waiter_takes_over_by_itself_when_the_lease_runs_out(make_server: Callable[..., InProcess]) -> None:
    server = make_server(lease_ttl_seconds=0.3)
    built = build()
    first = server.ask(built)
    answer = server.send_ask(built, wait_seconds=25).result(HANG_SECONDS).json()
    assert answer["state"] == "granted"
    assert answer["generation"] > first["generation"]


def test_heartbeats_keep_a_lease_alive(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    built = build()
    granted = server.ask(built)
    for _ in range(5):
        clock.now += 20
        answer = _renew(server, built, granted["token"])
        assert (answer.status_code, answer.json()["ttl_seconds"]) == (200, 30)
    assert server.ask(built)["state"] == "wait"


def test_a_paused_holder_goes_on_if_nobody_took_over(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    built = build()
    granted = server.ask(built)
    clock.now += 300
    assert _renew(server, built, granted["token"]).status_code == 200
    assert server.ask(built)["state"] == "wait"


@pytest.mark.parametrize("token", ["", "wrong", "x" * 43, "\N{SNOWMAN}"])
def test_nobody_else_renews_or_ends_a_lease(server: InProcess, token: str) -> None:
    built = build()
    server.ask(built)
    assert problem(_renew(server, built, token)) == (409, "lease_lost")
    assert problem(_release(server, built, token)) == (409, "lease_lost")
    assert server.ask(built)["state"] == "wait"


def test_publishing_ends_the_lease_whoever_holds_it(server: InProcess) -> None:
    built = build()
    granted = server.ask(built)
    server.publish(built)
    assert problem(_renew(server, built, granted["token"])) == (409, "lease_lost")
    server.call("DELETE", built.path)
    again = server.ask(built)
    assert again["state"] == "granted"
    assert again["generation"] > granted["generation"]


def test_a_second_build_ends_the_lease_of_its_key(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    built = build()
    server.publish(built)
    server.output_path(built).unlink()
    granted = server.ask(built)
    assert granted["state"] == "granted"
    assert server.publish(build(neff=b"another")).status_code == 201
    assert problem(_renew(server, built, granted["token"])) == (409, "lease_lost")


def test_generations_rise_although_the_database_was_lost(
    make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    server = make_server(clock=clock)
    built = build()
    first = server.ask(built)["generation"]
    server.close()
    for path in (server.folder / "data").glob("cache.db*"):
        path.unlink()
    clock.now += 1
    assert make_server(clock=clock).ask(built)["generation"] > first


def test_a_diagnosis_is_replayed_for_five_minutes(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    built = build()
    _fail(server, built, DIAGNOSIS)
    clock.now += 100
    found = server.ask(built)
    assert found["state"] == "failed"
    assert (found["class"], found["log"], found["replayed"]) == ("diagnosis", "too many instructions", True)
    assert found["expires_in"] == 200
    assert server.ask(build("another compiler build"))["state"] == "granted"
    clock.now += 201
    assert server.ask(built)["state"] == "granted"


def test_whoever_asks_for_it_compiles_again_despite_the_diagnosis(server: InProcess) -> None:
    built = build()
    _fail(server, built, DIAGNOSIS)
    assert server.ask(built, retry_failed=True)["state"] == "granted"


def test_a_key_that_keeps_failing_rests(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    built = build()
    for _ in range(3):
        _fail(server, built, RESOURCE)
        clock.now += 10
    found = server.ask(built)
    assert (found["state"], found["expires_in"], found["replayed"]) == ("failed", 50, True)
    clock.now += 51
    # one more try, then it rests again
    _fail(server, built, RESOURCE)
    assert server.ask(built)["state"] == "failed"
    clock.now += 601
    assert server.ask(built)["state"] == "granted"


def test_a_compile_that_takes_its_container_along_does_not_go_from_node_to_node_without_end(
    make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    server = make_server(clock=clock)
    built = build()
    for number in range(12):
        answer = server.ask(built, host=f"node-{number}")
        assert answer["state"] == "granted"
        # the holder dies of memory on the way, and nobody is left to say so
        clock.now += 31 if number == 11 else 3700
    rests = server.ask(built, host="next")
    assert (rests["state"], rests["class"], rests["replayed"]) == ("failed", "resource", True)
    assert "node-11" in rests["text"]
    assert "memory" in rests["text"]
    assert rests["expires_in"] == 3599  # no rest is longer than an hour
    waiter = server.ask(built, host="waiter", seen_generation=answer["generation"])
    assert (waiter["state"], waiter["text"]) == ("failed", rests["text"])
    clock.now += rests["expires_in"] + 1
    assert server.ask(built, host="next")["state"] == "granted"


def test_two_holders_that_die_cost_a_waiter_no_rest(make_server: Callable[..., InProcess], clock: FakeClock) -> None:
    server = make_server(clock=clock)
    built = build()
    for _ in range(3):
        granted = server.ask(built)
        assert granted["state"] == "granted"
        clock.now += 31
    assert server.ask(built)["expires_in"] == 59  # 60 s after the third ran out, a second ago


def test_failures_far_apart_are_counted_too_until_there_is_an_entry(
    make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    server = make_server(clock=clock)
    built = build()
    for _ in range(3):
        _fail(server, built, RESOURCE)
        clock.now += 3600
    _fail(server, built, RESOURCE)
    assert server.ask(built)["expires_in"] == 120
    assert server.publish(built).status_code == 201
    assert server.call("DELETE", built.path).status_code == 204
    _fail(server, built, RESOURCE)
    assert server.ask(built)["state"] == "granted"


def test_a_caller_that_may_not_publish_waits_but_is_never_granted(server: InProcess) -> None:
    built = build()
    assert server.ask(built, may_publish=False) == {"state": "denied"}
    server.ask(built)
    answer = server.send_ask(built, may_publish=False, wait_seconds=25)
    server.waiting()
    server.publish(built)
    assert answer.result(HANG_SECONDS).json()["state"] == "ready"


def test_a_caller_that_went_away_is_not_granted_the_lease(server: InProcess) -> None:
    built = build()
    granted = server.ask(built)
    body = b'{"holder": {"host": "gone", "pid": 1}, "wait_seconds": 25}'
    messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    server.raw("POST", built.lease, messages, {"content-type": "application/json"})
    _release(server, built, granted["token"])
    assert server.ask(built)["state"] == "granted"


def test_a_grant_to_a_caller_that_went_away_is_taken_back(server: InProcess) -> None:
    built = build()
    body = b'{"holder": {"host": "gone", "pid": 1}}'
    messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    server.raw("POST", built.lease, messages, {"content-type": "application/json"})
    assert server.ask(built, host="next")["state"] == "granted"


def test_the_server_lets_waiters_go_when_it_stops(server: InProcess) -> None:
    built = build()
    server.ask(built)
    answer = server.send_ask(built, wait_seconds=25)
    server.waiting()
    server.loop.call_soon_threadsafe(server.service.waiters.close)
    assert answer.result(HANG_SECONDS).json()["state"] == "wait"


def test_there_are_no_leases_on_mirrored_entries(server: InProcess) -> None:
    built = build(kind=Kind.FOREIGN)
    answer = server.send_ask(built).result(HANG_SECONDS)
    assert problem(answer) == (422, "invalid")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"holder": {"host": "h"}},
        {"holder": {"host": "h", "pid": -1}},
        {"holder": {"host": "h" * 300, "pid": 1}},
        {"holder": {"host": "h", "pid": 1}, "wait_seconds": 26},
        {"holder": {"host": "h", "pid": 1}, "wait_seconds": -1},
        {"holder": {"host": "h", "pid": 1}, "seen_generation": "x"},
    ],
)
def test_a_request_that_breaks_the_contract_is_refused(server: InProcess, body: dict[str, Any]) -> None:
    assert problem(server.call("POST", build().lease, json=body)) == (422, "invalid")


@pytest.mark.parametrize("failure", [{}, {"class": "other", "text": "x"}, {"class": "diagnosis"}, []])
def test_a_failure_that_is_none_does_not_end_the_lease(server: InProcess, failure: Any) -> None:
    built = build()
    token = server.ask(built)["token"]
    assert problem(_release(server, built, token, failure)) == (422, "invalid")
    assert _renew(server, built, token).status_code == 200


def test_a_log_that_no_database_could_hold_is_kept_as_far_as_it_goes(server: InProcess) -> None:
    built = build()
    token = server.ask(built)["token"]
    body = '{"token": "%s", "failure": {"class": "diagnosis", "text": "a\\u0000b", "log": "\\ud800%s"}}'
    sent = (body % (token, "x" * 100_000)).encode()
    headers = {"Content-Type": "application/json"}
    assert server.call("POST", f"{built.lease}/release", content=sent, headers=headers).status_code == 200
    found = server.ask(built)
    assert found["text"] == "a\N{REPLACEMENT CHARACTER}b"
    assert found["log"] == "x" * 65536


def test_tokens_of_leases_are_not_kept_in_the_database(server: InProcess) -> None:
    token = server.ask(build())["token"]
    assert len(token) >= 43
    server.close()
    for path in (server.folder / "data").glob("cache.db*"):
        assert token.encode() not in path.read_bytes()
        assert TOKEN.encode() not in path.read_bytes()


def test_one_token_holds_no_more_leases_than_it_may_and_others_are_not_hindered(
    make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    server = make_server(clock=clock, max_leases=3)
    other = server.call(
        "POST", "/admin/v1/tokens", json={"label": "other", "grants": [{"scopes": ["read", "write", "lease"]}]}
    ).json()["token"]
    every = [build(f"key {number}") for number in range(5)]
    granted = [server.ask(built) for built in every[:3]]
    assert [answer["state"] for answer in granted] == ["granted"] * 3
    answer = server.send_ask(every[3]).result(HANG_SECONDS)
    assert problem(answer) == (429, "too_many_leases")
    assert int(answer.headers["retry-after"]) >= 1
    assert "max_leases" in answer.json()["detail"]
    assert 'neff_cache_errors_total{name="too_many_leases"} 1.0' in server.call("GET", "/metrics").text
    # waiting and being told of an entry are no leases, and what is held may be renewed
    assert server.ask(every[0])["state"] == "wait"
    assert server.call("PATCH", every[0].lease, json={"token": granted[0]["token"]}).status_code == 200
    assert server.send_ask(every[3], token=other).result(HANG_SECONDS).json()["state"] == "granted"
    # one that was given back, published or ran out counts no more
    server.call("POST", every[0].lease + "/release", json={"token": granted[0]["token"]})
    assert server.ask(every[4])["state"] == "granted"
    clock.now += server.service.settings.lease_ttl_seconds + 1
    assert server.ask(every[0])["state"] == "granted"
