"""A store or proxy that answers wrongly for a while costs answers of 503, never an entry."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete

from cache_server.database import scrub
from cache_server.database.models import EntryRow, MetaRow
from cache_server.services.fsck import Fsck
from cache_server.services.meta import Meta
from cache_server.stores.base import StoreError
from client.names import MAIN_OUTPUT
from client.s3.retry import RetryPolicy
from tests.cache_server.harness import FakeClock, build, problem
from tests.fakes.waiting import HANG_SECONDS
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.s3_faults import fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cache_server.harness import Built, InProcess
    from tests.support.s3_faults import FaultProxy

_numbers = itertools.count(1)

COUNT = 5
MONTH = 30 * 86400.0
OUTPUT = r"/[0-9a-f]{64}(\.zst)?($|\?)"
ENTRY = r"/entry\.json($|\?)"
HTML = b"<html><body>Log in to this network first</body></html>"
NEFF = b"neff" * 100

LIES: dict[str, list[dict[str, Any]]] = {
    "SlowDown with 200": [{"method": "GET", "target": OUTPUT, "code": "SlowDown"}],
    "SlowDown with 200 for the entry too": [{"method": "GET", "target": f"{OUTPUT}|{ENTRY}", "code": "SlowDown"}],
    "an error page of the same length": [{"method": "GET", "target": OUTPUT, "body": HTML.ljust(len(NEFF))}],
    "a body cut off": [{"method": "GET", "target": OUTPUT, "body": NEFF[:100]}],
    "an empty body": [{"method": "GET", "target": OUTPUT, "body": b""}],
    "a captive proxy": [{"method": each, "target": "", "body": HTML} for each in ("GET", "HEAD", "PUT")],
    "sizes of another object": [{"method": "HEAD", "target": OUTPUT, "body": b"12"}],
    "SlowDown without a length": [{"method": "GET", "target": OUTPUT, "code": "SlowDown", "without_length": True}],
    "a head without a length": [{"method": "HEAD", "target": OUTPUT, "without_length": True}],
    "404 for a while": [
        {"method": each, "target": OUTPUT, "status": 404, "code": "NoSuchKey"} for each in ("GET", "HEAD")
    ],
    "404 for the entry": [{"method": "GET", "target": ENTRY, "status": 404, "code": "NoSuchKey"}],
}


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    use_credentials(monkeypatch)
    with fault_proxy(seaweedfs()) as found:
        yield found


class Stand:
    """A server on a bucket behind a proxy, with sound entries."""

    def __init__(self, server: InProcess, proxy: FaultProxy, clock: FakeClock, every: list[Built]) -> None:
        self.server, self.proxy, self.clock, self.every = server, proxy, clock, every

    def lie(self, name: str, times: int = 10**6) -> None:
        for how in LIES[name]:
            self.proxy.break_next(**{"status": 200, "times": times, **how})

    def all_stand(self) -> bool:
        """Whether every entry is served, in its own bytes, now that the store is well again."""
        self.proxy.faults.clear()
        answers = [self.server.call("GET", built.artifact) for built in self.every]
        return [answer.content for answer in answers] == [built.stored[MAIN_OUTPUT] for built in self.every]


@pytest.fixture
def stand(make_server: Callable[..., InProcess], proxy: FaultProxy) -> Stand:
    clock = FakeClock()
    server = make_server(clock=clock, store=proxy.url(f"lies-{next(_numbers)}"))
    every = [build(f"entry {number}", neff=bytes([number]) + NEFF[1:], log=None) for number in range(COUNT)]
    for built in every:
        assert server.publish(built).status_code == 201
    # a lie that the SDK recognises is asked for again, for as long as a request may take
    bucket = server.service.store._store._bucket  # type: ignore[attr-defined]
    bucket.requests._policy = RetryPolicy(seconds=0)
    return Stand(server, proxy, clock, every)


def _forget_rows(server: InProcess) -> None:
    with server.service.database.transaction() as session:
        session.execute(delete(EntryRow))


def _suspect(stand: Stand) -> None:
    for built in stand.every:
        output = built.entry.output()
        assert output is not None
        answer = stand.server.call("POST", f"{built.path}/suspect", json={"sha256": output.sha256})
        assert answer.status_code == 503 or answer.json()["state"] == "sound", answer.text


def _scrub(stand: Stand) -> None:
    stand.clock.now += MONTH + 1
    stand.server.service.scrubbing.run()
    stand.clock.now += scrub.AGAIN_SECONDS
    stand.server.service.scrubbing.run()


def _lease(stand: Stand) -> None:
    for built in stand.every:
        answer = stand.server.send_ask(built).result(HANG_SECONDS)
        assert answer.status_code == 503 or answer.json()["state"] == "ready", answer.text


def _adopt(stand: Stand) -> None:
    _forget_rows(stand.server)
    for built in stand.every:
        answer = stand.server.send_ask(built).result(HANG_SECONDS)
        # an entry.json that is said not to be there is no verdict on anything
        assert answer.status_code == 503 or answer.json()["state"] in {"ready", "granted"}, answer.text


def _sweep(stand: Stand) -> None:
    stand.server.service.sweeping._now = lambda: 2e9 + 10**9
    stand.server.service.sweeping.sweep()


def _sweep_unknown(stand: Stand) -> None:
    _forget_rows(stand.server)
    _sweep(stand)


def _rebuild(stand: Stand) -> None:
    stand.server.service.rebuilding.rebuild()


def _repair(stand: Stand) -> None:
    service = stand.server.service
    report = Fsck(service.store, service.database, orphan_seconds=1.0, deep=True, sleep=lambda _seconds: None).run()
    service.repairing.repair(report.findings, alone=False)


DEEDS: dict[str, Callable[[Stand], None]] = {
    "suspect": _suspect,
    "scrub": _scrub,
    "lease": _lease,
    "adoption": _adopt,
    "sweep": _sweep,
    "sweep without a database": _sweep_unknown,
    "rebuild-index": _rebuild,
    "fsck --deep --repair": _repair,
}


@pytest.mark.parametrize("deed", sorted(DEEDS))
@pytest.mark.parametrize("lie", sorted(LIES))
@pytest.mark.share(12)
def test_no_entry_is_lost_to_a_store_that_lies(stand: Stand, lie: str, deed: str) -> None:
    stand.lie(lie)
    with contextlib.suppress(StoreError):  # a walk over the store may end where it cannot be believed
        DEEDS[deed](stand)
    stand.proxy.faults.clear()
    stand.clock.now += 2 * scrub.AGAIN_SECONDS
    stand.server.service.scrubbing.run()
    stand.server.service.sweeping._now = lambda: 0.0
    stand.server.service.sweeping.sweep()
    assert stand.all_stand()


@pytest.mark.parametrize("lie", sorted(set(LIES) - {"404 for the entry", "404 for a while"}))
@pytest.mark.share(3)
def test_a_reader_is_told_to_come_again_and_not_that_there_is_nothing(stand: Stand, lie: str) -> None:
    stand.lie(lie)
    for built in stand.every:
        answer = stand.server.call("GET", built.artifact)
        # a body of the right length is for the reader to hash
        assert answer.status_code == 200 or problem(answer) == (503, "store_unavailable")
    assert stand.all_stand()


def test_damage_that_stays_is_found_in_a_bucket_as_on_a_disk(stand: Stand) -> None:
    built = stand.every[0]
    output = built.entry.output()
    assert output is not None
    bucket = stand.server.service.store._store._bucket  # type: ignore[attr-defined]
    name = f"{built.address.path}/{output.sha256}"
    bucket.remove(name)
    bucket.create(name, b"x" * output.size)
    answer = stand.server.call("POST", f"{built.path}/suspect", json={"sha256": output.sha256})
    assert answer.json() == {"state": "quarantined"}


def test_a_revocation_is_not_forgotten_because_the_store_lied_at_the_start(stand: Stand) -> None:
    """A revision of policy that reads as an error page is not passed over for the one before it."""
    token = stand.server.call("POST", "/admin/v1/tokens", json={"label": "a", "grants": [{"scopes": ["read"]}]}).json()
    stand.server.call("DELETE", f"/admin/v1/tokens/{token['id']}")
    service = stand.server.service
    with service.database.transaction() as session:
        session.execute(delete(MetaRow))
    stand.proxy.break_next("GET", r"/0*2\.json", status=200, code="SlowDown", times=10**6)
    with pytest.raises(StoreError):
        Meta(service.store, service.database).restore()


def test_nothing_is_acknowledged_that_a_captive_proxy_took_for_the_store(stand: Stand) -> None:
    built = build("another")
    stand.server.upload(built)
    stand.lie("a captive proxy")
    answer = stand.server.call("PUT", built.path, json=built.entry.to_json())
    assert problem(answer) == (503, "store_unavailable")
    stand.proxy.faults.clear()
    assert stand.server.call("PUT", built.path, json=built.entry.to_json()).status_code == 201
    stand.every.append(built)
    assert stand.all_stand()
