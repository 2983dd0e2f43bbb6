"""The scrub: damage at rest is found before a job meets it, slowly, and once around for every entry."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, update

from cache_server.database import scrub
from cache_server.database.models import EntryRow
from cache_server.database.scrub import AGAIN_SECONDS, REST_SECONDS
from cache_server.services.scrubbing import MOST_IN_A_ROW, SAVE_SECONDS, Scrubbing
from cache_server.stores.base import CHUNK
from client.names import MAIN_OUTPUT
from tests.cache_server.harness import FakeClock, build, problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import Built, InProcess

DAY = 86400.0
MONTH = 30 * DAY


class Time:
    """A monotonic clock that only sleep moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += max(seconds, 0.0)


class Duty:
    """The answers to give, the last of them for ever."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    def is_ours(self) -> bool:
        return (self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]) == "ours"


def _scrubbing(server: InProcess, **given: Any) -> Scrubbing:
    service = server.service
    clock = given.pop("time", Time())
    options = {"bytes_per_second": 1 << 30, "every_seconds": MONTH, "duty": service.duty, **given}
    return Scrubbing(
        store=service.store,
        database=service.database,
        suspicion=service.suspicion,
        metrics=service.metrics,
        monotonic=clock.monotonic,
        sleep=clock.sleep,
        **options,
    )


def _flip(server: InProcess, built: Built, name: str = MAIN_OUTPUT) -> None:
    path = server.output_path(built, name)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(data)


def _checked(server: InProcess) -> dict[str, float]:
    with server.service.database.reading() as connection:
        return {row.key: row.checked for row in connection.execute(select(EntryRow.key, EntryRow.checked))}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(make_server: Callable[..., InProcess], clock: FakeClock) -> InProcess:
    return make_server(clock=clock)


def test_flipped_bits_at_rest_are_found_and_set_aside_and_sound_entries_stay(
    server: InProcess, clock: FakeClock
) -> None:
    sound, bad_neff, bad_log = build("sound"), build("bad neff"), build("bad log")
    for built in (sound, bad_neff, bad_log):
        server.publish(built)
    _flip(server, bad_neff)
    _flip(server, bad_log, "compile.log")
    clock.now += MONTH + 1
    scrubbing = _scrubbing(server)
    progress = scrubbing.run()
    assert progress is not None
    assert progress.ended is not None
    assert (progress.entries, progress.quarantined, progress.unreadable) == (3, 0, 0)
    assert scrubbing.suspected() == 2
    clock.now += AGAIN_SECONDS - 1
    assert scrubbing.run() is None
    clock.now += 1
    progress = scrubbing.run()
    assert progress is not None
    assert progress.ended is not None
    assert (progress.entries, progress.quarantined, progress.unreadable) == (3, 2, 0)
    assert scrubbing.suspected() == 0
    assert server.call("GET", sound.artifact).content == sound.stored[MAIN_OUTPUT]
    for built in (bad_neff, bad_log):
        assert server.call("GET", built.artifact).status_code == 404
        assert server.ask(built)["state"] == "granted"
    assert len([name for name in server.files() if name.startswith("quarantine/")]) == 4


def test_nothing_is_read_again_before_its_time(server: InProcess, clock: FakeClock) -> None:
    server.publish(build())
    scrubbing = _scrubbing(server)
    clock.now += MONTH - 1
    assert scrubbing.run() is None
    clock.now += 2
    assert scrubbing.run() is not None
    assert scrubbing.run() is None


def test_a_switched_off_scrub_still_runs_when_asked(server: InProcess, clock: FakeClock) -> None:
    server.publish(build())
    scrubbing = _scrubbing(server, bytes_per_second=0)
    clock.now += 2 * MONTH
    assert scrubbing.run() is None
    scrubbing.request()
    progress = scrubbing.run()
    assert progress is not None
    assert progress.entries == 1


def test_reading_keeps_to_the_rate(server: InProcess, clock: FakeClock) -> None:
    time = Time()
    server.publish(build(neff=os.urandom(5 * CHUNK), log=None))
    clock.now += MONTH + 1
    _scrubbing(server, bytes_per_second=CHUNK // 2, time=time).run()
    assert time.now == pytest.approx(10.0)
    assert 0 < max(time.slept) <= 2.0  # a piece at a time, not the whole output and then a long pause


def test_the_longest_unchecked_entries_come_first_and_a_restart_goes_on_where_it_stopped(
    server: InProcess, make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    every = [build(f"entry {number}", log=None) for number in range(5)]
    for built in every:
        server.publish(built)
        clock.now += 1
    clock.now += MONTH
    time = Time()
    first = _scrubbing(server, bytes_per_second=100, time=time)

    def stop_in_the_third(seconds: float) -> None:
        time.sleep(seconds)
        if len(time.slept) == 3:
            first._means.stop.set()

    object.__setattr__(first._means, "sleep", stop_in_the_third)
    progress = first.run()
    assert progress is not None
    assert progress.ended is None
    done = {key for key, checked in _checked(server).items() if checked >= clock.now}
    assert done == {built.entry.key for built in every[:2]}
    server.close()

    again = make_server(clock=clock)
    read: list[str] = []
    scrubbing = _scrubbing(again)
    opened = again.service.store.open_output
    again.service.store.open_output = lambda blob, **how: read.append(blob.address.key) or opened(blob, **how)  # type: ignore[method-assign,func-returns-value]
    progress = scrubbing.run()
    assert progress is not None
    assert progress.ended is not None
    assert read == [built.entry.key for built in every[2:]]


def test_what_became_due_during_a_run_is_taken_in(server: InProcess, clock: FakeClock) -> None:
    first, second = build("first"), build("second")
    server.publish(first)
    clock.now += MONTH + 1
    time = Time()
    scrubbing = _scrubbing(server, bytes_per_second=100, time=time)

    def ask_meanwhile(seconds: float) -> None:
        time.sleep(seconds)
        if len(time.slept) == 1:
            server.publish(second)
            clock.now += 1
            scrubbing.request()

    object.__setattr__(scrubbing._means, "sleep", ask_meanwhile)
    progress = scrubbing.run()
    assert progress is not None
    assert progress.ended is not None
    assert min(_checked(server).values()) >= clock.now - 1
    assert progress.entries >= 2


def test_an_output_that_cannot_be_read_is_no_verdict_and_is_due_again(server: InProcess, clock: FakeClock) -> None:
    built, sound = build("a", neff=b"n" * 64), build("sound")
    for each in (built, sound):
        server.publish(each)
    path = server.output_path(built)
    content = path.read_bytes()
    path.unlink()
    path.symlink_to(path.name)
    clock.now += MONTH + 1
    scrubbing = _scrubbing(server)
    progress = scrubbing.run()
    assert progress is not None
    assert (progress.entries, progress.unreadable, progress.quarantined) == (2, 1, 0)
    path.unlink()
    path.write_bytes(content)
    progress = scrubbing.run()
    assert progress is not None
    assert (progress.entries, progress.unreadable) == (1, 0)
    assert server.call("GET", built.artifact).status_code == 200


def test_an_entry_that_is_deleted_while_it_is_read_is_no_damage(server: InProcess, clock: FakeClock) -> None:
    built = build()
    server.publish(built)
    clock.now += MONTH + 1
    time = Time()
    scrubbing = _scrubbing(server, bytes_per_second=100, time=time)

    def delete(seconds: float) -> None:
        if not time.slept:
            server.call("DELETE", built.path)
        time.sleep(seconds)

    object.__setattr__(scrubbing._means, "sleep", delete)
    progress = scrubbing.run()
    assert progress is not None
    assert progress.quarantined == 0
    assert server.files() == []


def test_only_the_server_whose_duty_it_is_scrubs(server: InProcess, clock: FakeClock) -> None:
    server.publish(build(neff=os.urandom(4 * CHUNK)))
    clock.now += MONTH + 1
    assert _scrubbing(server, duty=Duty("theirs")).run() is None
    # one that loses the duty stops at its next look, and leaves the rest to the other
    progress = _scrubbing(server, duty=Duty("ours", "theirs"), bytes_per_second=int(CHUNK / (SAVE_SECONDS + 1))).run()
    assert progress is not None
    assert progress.ended is None
    progress = _scrubbing(server, duty=Duty("ours")).run()
    assert progress is not None
    assert progress.ended is not None


def test_adopted_entries_are_looked_at_first(
    server: InProcess, make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    server.publish(build())
    server.close()
    for path in (server.folder / "data").glob("cache.db*"):
        path.unlink()
    again = make_server(clock=clock)
    again.service.sweeping.sweep()
    assert list(_checked(again).values()) == [0.0]
    assert _scrubbing(again).run() is not None


def test_the_operator_starts_a_run_and_sees_how_it_ends(server: InProcess) -> None:
    built = build()
    server.publish(built)
    _flip(server, built)
    assert server.call("GET", "/admin/v1/scrub").json() == {"state": "never"}
    assert problem(server.call("POST", "/admin/v1/scrub", token="x" * 40)) == (401, "unauthorized")
    server.clock.now += 1  # type: ignore[union-attr]
    answer = server.call("POST", "/admin/v1/scrub")
    assert answer.status_code == 202
    assert answer.json()["state"] == "running"
    server.service.scrubbing.start()
    value = _until_ended(server)
    assert (value["state"], value["entries"], value["suspected"], value["quarantined"]) == ("ended", 1, 1, 0)
    server.clock.now += AGAIN_SECONDS  # type: ignore[union-attr]
    server.call("POST", "/admin/v1/scrub")
    value = _until_ended(server)
    server.service.scrubbing.stop()
    assert (value["state"], value["suspected"], value["quarantined"]) == ("ended", 0, 1)
    text = server.call("GET", "/metrics").text
    assert 'neff_cache_scrubbed_total{result="quarantined"} 1.0' in text
    assert "neff_cache_scrubbed_bytes_total" in text


def _until_ended(server: InProcess) -> Any:
    done = threading.Event()
    for _ in range(1000):
        value = server.call("GET", "/admin/v1/scrub").json()
        if value["state"] == "ended":
            break
        done.wait(0.01)
    return value


def test_only_an_admin_starts_a_run(make_server: Callable[..., InProcess]) -> None:
    server = make_server(anonymous="all")
    for method in ("GET", "POST"):
        assert problem(server.call(method, "/admin/v1/scrub", token=None)) == (403, "forbidden")


def test_many_entries_of_one_age_are_all_seen(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "_PAGE", 4)
    count = 11
    for number in range(count):
        server.publish(build(str(number)))
    with server.service.database.transaction() as session:
        session.execute(update(EntryRow).values(checked=0.0))
    progress = _scrubbing(server).run()
    assert progress is not None
    assert progress.ended is not None
    assert progress.entries == count


def _run(scrubbing: Scrubbing) -> scrub.Progress:
    found = scrubbing.run()
    assert found is not None
    return found


def test_a_store_whose_entries_all_look_wrong_stops_the_scrub_and_loses_none(
    server: InProcess, clock: FakeClock
) -> None:
    """It says so, rests, and goes on behind those: what stays wrong does not keep it from the others."""
    every = [build(f"entry {number}", log=None) for number in range(2 * MOST_IN_A_ROW + 1)]
    for built in every:
        server.publish(built)
        clock.now += 1
    bad, sound = every[:-1], every[-1]
    for built in bad:
        _flip(server, built)
    clock.now += MONTH
    scrubbing = _scrubbing(server)
    progress = _run(scrubbing)
    assert (progress.ended, progress.entries, progress.quarantined) == (None, MOST_IN_A_ROW, 0)
    assert scrubbing.run() is None

    value = server.call("GET", "/admin/v1/scrub").json()
    assert (value["state"], value["suspected"]) == ("resting", MOST_IN_A_ROW)
    health = server.call("GET", "/admin/v1/readiness").json()
    assert health["ready"]
    assert health["parts"]["scrub"] == value["reason"]
    assert "entries in a row could not be verified" in value["reason"]
    assert "neff_cache_scrub_stopped 1.0" in server.call("GET", "/metrics").text

    for built in bad:  # the store is well again
        _flip(server, built)
    clock.now += max(REST_SECONDS, AGAIN_SECONDS)
    progress = _run(scrubbing)
    assert progress.ended is not None
    assert (progress.quarantined, progress.reason) == (0, None)
    assert server.call("GET", "/admin/v1/readiness").json()["parts"]["scrub"] == "ok"
    for built in [*bad, sound]:
        assert server.call("GET", built.artifact).status_code == 200


def test_damage_to_a_whole_store_is_set_aside_a_few_entries_at_a_time(server: InProcess, clock: FakeClock) -> None:
    every = [build(f"entry {number}", log=None) for number in range(MOST_IN_A_ROW + 2)]
    for built in every:
        server.publish(built)
        _flip(server, built)
    clock.now += MONTH + 1
    scrubbing = _scrubbing(server)
    for _ in range(6):
        scrubbing.run()
        clock.now += max(REST_SECONDS, AGAIN_SECONDS)
    assert scrubbing.suspected() == 0
    assert [server.call("GET", built.artifact).status_code for built in every] == [404] * len(every)


def test_a_second_look_that_finds_another_fault_is_no_verdict(server: InProcess, clock: FakeClock) -> None:
    built = build(neff=bytes(range(200)))
    server.publish(built)
    _flip(server, built)
    clock.now += MONTH + 1
    scrubbing = _scrubbing(server)
    _run(scrubbing)
    server.output_path(built).write_bytes(b"x" * 200)
    clock.now += AGAIN_SECONDS
    assert _run(scrubbing).quarantined == 0
    assert scrubbing.suspected() == 1
    clock.now += AGAIN_SECONDS
    assert _run(scrubbing).quarantined == 1


def test_a_suspicion_survives_a_restart_and_ends_with_its_entry(
    server: InProcess, make_server: Callable[..., InProcess], clock: FakeClock
) -> None:
    gone, bad = build("gone"), build("bad")
    for built in (gone, bad):
        server.publish(built)
        _flip(server, built)
    clock.now += MONTH + 1
    _run(_scrubbing(server))
    server.close()
    again = make_server(clock=clock)
    again.call("DELETE", gone.path)
    clock.now += AGAIN_SECONDS
    scrubbing = _scrubbing(again)
    assert _run(scrubbing).quarantined == 1
    assert scrubbing.suspected() == 0


def test_a_clock_that_was_wrong_makes_no_entry_exempt(server: InProcess, clock: FakeClock) -> None:
    clock.now += 10 * 365 * DAY
    server.publish(build())
    clock.now -= 10 * 365 * DAY
    progress = _scrubbing(server).run()
    assert progress is not None
    assert progress.entries == 1
    assert _scrubbing(server).run() is None


def test_outputs_without_a_byte_are_sound(server: InProcess, clock: FakeClock) -> None:
    """OPEN-098: what was taken in is not thrown out again for being unusual."""
    for name, log in (("no log", None), ("empty log", b"")):
        server.publish(build(name, log=log))
    clock.now += MONTH + 1
    progress = _scrubbing(server).run()
    assert progress is not None
    assert (progress.entries, progress.quarantined, progress.unreadable) == (2, 0, 0)
