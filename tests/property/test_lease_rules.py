"""Leases and publishing under every order of events, on the real database and store, with the clock in our hands."""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import URL

from cache_server.access import SERVER
from cache_server.address import Address
from cache_server.database import leases
from cache_server.database.engine import Database
from cache_server.database.migrate import migrate
from cache_server.errors import Problem
from cache_server.lease_rules import (
    DIAGNOSIS_MEMORY,
    Grant,
    LeaseRequest,
    PastFailure,
    Running,
    decide,
    next_generation,
)
from cache_server.service import Service
from cache_server.settings import Settings
from cache_server.stores.base import Blob
from client.errors import Failure
from client.failures import MANY_ATTEMPTS, rest_seconds
from client.key import key_of
from client.names import Kind
from client.wire import Entry, Failed, Granted, Holder, NotGranted, Output, Producer, Ready, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")

TTL = 30.0
DOCUMENTS = [{"schema": 1, "kind": "graph", "name": name} for name in ("a", "b")]
ADDRESSES = [Address("default", Kind.GRAPH, key_of(document)) for document in DOCUMENTS]
MOSTLY = st.sampled_from([True, True, True, False])
FAILURES = st.sampled_from(
    [None, Failure("diagnosis", "NCC_E1"), Failure("resource", "memory"), Failure("transient", "gone")]
)


def _attempt(work: Callable[[], _Result]) -> tuple[_Result | None, str | None]:
    """Return what ``work`` returns, or the name of the problem it ends in."""
    try:
        return work(), None
    except Problem as problem:
        return None, problem.kind.name


@functools.cache
def _empty_database() -> Path:
    """Make the tables once: every example begins with a copy."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "cache.db"
    database = Database(URL.create("sqlite", database=str(path)))
    migrate(database)
    database.close()
    return path


class LeaseMachine(RuleBasedStateMachine):
    """Many processes ask for two keys, renew, fail, fall silent, publish; entries are deleted; servers restart."""

    database: str | None = None
    """The URL of an empty database, or None for SQLite."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1_800_000_000.0
        shutil.copyfile(_empty_database(), Path(self.folder.name) / "cache.db")
        self.service = self._open()
        self.granted: list[tuple[Address, Granted]] = []
        self.highest: dict[Address, int] = {}
        # who holds each key by the rules: token and end, as a model of three lines
        self.holder: dict[Address, tuple[str, float]] = {}
        self.entries: set[Address] = set()
        self.builds = 0

    def _open(self) -> Service:
        configured = Settings(
            host="10.0.0.1",
            allowed_hosts=("test",),
            data_dir=Path(self.folder.name),
            database=self.database,
            bootstrap_token="t" * 40,
            threads=2,
            lease_ttl_seconds=TTL,
        )
        return Service.open(configured, clock=lambda _connection: self.now)

    def teardown(self) -> None:
        self.service.close()
        self.folder.cleanup()

    def _live(self, address: Address) -> bool:
        held = self.holder.get(address)
        return held is not None and held[1] > self.now

    @initialize()
    def begin(self) -> None:
        self.now += 1

    @rule(seconds=st.sampled_from([0.001, 1.0, 9.0, 29.0, 31.0, 61.0, 301.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=st.integers(0, 1), seen=st.booleans(), retry=st.booleans(), may_publish=MOSTLY)
    def ask(self, which: int, *, seen: bool, retry: bool, may_publish: bool) -> None:
        address = ADDRESSES[which]
        request = LeaseRequest(
            Holder("h", 1), retry, self.highest.get(address) if seen else None, may_publish=may_publish
        )
        answer = self.service.leasing.acquire(address, request)
        match answer:
            case Ready(entry):
                assert address in self.entries
                assert self.service.catalogue.is_sound(address, entry)
            case Granted(token, generation, _):
                assert address not in self.entries
                assert may_publish
                assert not self._live(address), "two live holders"
                assert generation > self.highest.get(address, 0), "a generation was used twice"
                self.highest[address] = generation
                self.holder[address] = (token, self.now + TTL)
                self.granted.append((address, answer))
            case Wait(generation, _, _, expires_in):
                assert self._live(address)
                assert generation == self.highest[address]
                assert 0 < expires_in <= TTL
            case Failed():
                assert address not in self.entries
                assert answer.replayed or seen
            case NotGranted():
                assert not may_publish
                assert not self._live(address)

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        address, lease = data.draw(st.sampled_from(self.granted))
        own = self.holder.get(address, ("", 0.0))[0] == lease.token
        renewed, refusal = _attempt(lambda: self.service.leasing.renew(address, lease.token))
        assert refusal == (None if own else "lease_lost")
        if renewed is not None:
            assert renewed.generation == lease.generation == self.highest[address]
            self.holder[address] = (lease.token, self.now + TTL)

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), failure=FAILURES)
    def release(self, data: st.DataObject, failure: Failure | None) -> None:
        address, lease = data.draw(st.sampled_from(self.granted))
        own = self.holder.get(address, ("", 0.0))[0] == lease.token
        _, refusal = _attempt(lambda: self.service.leasing.release(address, lease.token, failure))
        assert refusal == (None if own else "lease_lost")
        if own:
            del self.holder[address]

    @rule(which=st.integers(0, 1), uploaded=MOSTLY)
    def publish(self, which: int, *, uploaded: bool) -> None:
        address = ADDRESSES[which]
        self.builds += 1
        data = b"build %d" % self.builds
        output = Output("model.neff", hashlib.sha256(data).hexdigest(), len(data))
        entry = Entry(
            *address, (output,), "2026-11-30T00:00:00Z", 1.0, Producer("t", "h"), key_document=DOCUMENTS[which]
        )
        if uploaded:
            blob = Blob.of(address, output)
            upload = self.service.store.begin_upload(blob)
            upload.write(data)
            upload.commit(blob)
        published, refusal = _attempt(lambda: self.service.publishing.publish(address, entry, by=SERVER))
        if published is None:
            assert refusal == "blob_missing"
            assert not uploaded
            assert address not in self.entries
            return
        assert published.created == (address not in self.entries)
        assert uploaded or not published.created
        # what is answered is durable already: it stands in the store, whole
        assert self.service.store.read_entry(address) is not None
        assert self.service.catalogue.is_sound(address, published.entry)
        self.entries.add(address)
        self.holder.pop(address, None)

    @rule(which=st.integers(0, 1), seconds=st.sampled_from([0.0, 29.0, 31.0]))
    def compile(self, which: int, seconds: float) -> None:
        """The usual course of things, which chance alone would seldom put together."""
        self.ask(which, seen=False, retry=True, may_publish=True)
        self.now += seconds
        self.publish(which, uploaded=True)

    @rule(which=st.integers(0, 1))
    def delete(self, which: int) -> None:
        address = ADDRESSES[which]
        assert self.service.deletion.delete(address, poisoned=False, by=SERVER) == (address in self.entries)
        self.entries.discard(address)

    @rule()
    def restart(self) -> None:
        self.service.close()
        self.service = self._open()

    @invariant()
    def an_ended_lease_means_a_durable_entry_or_a_free_key(self) -> None:
        with self.service.database.reading() as connection:
            for address in ADDRESSES:
                running = leases.running(connection, address, self.now)
                assert (running is not None) == self._live(address)
                stands = self.service.store.read_entry(address) is not None
                assert stands == (address in self.entries)


@pytest.mark.timeout(100)
class TestLeaseMachine(LeaseMachine.TestCase):
    settings = settings(
        max_examples=12,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # every step is real I/O: shrinking would take minutes, and thirty steps can be read
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )


@pytest.mark.soak
@pytest.mark.timeout(1200)
class TestLeaseMachineAtLength(LeaseMachine.TestCase):
    settings = settings(TestLeaseMachine.settings, max_examples=300, stateful_step_count=50)


def _past(time: float, failure_class: str, generation: int = 1) -> PastFailure:
    return PastFailure(generation, Failure(failure_class, "text"), "host", time)  # type: ignore[arg-type]


CLASSES = st.sampled_from(["diagnosis", "resource", "transient"])
PASTS = st.lists(
    st.builds(_past, st.floats(0, 1000), CLASSES, st.integers(1, 9)), max_size=6
).map(lambda pasts: sorted(pasts, key=lambda past: past.time))  # fmt: skip
NOW = st.floats(1000, 3000)


def _request(*, retry_failed: bool = False, seen: int | None = None, may_publish: bool = True) -> LeaseRequest:
    return LeaseRequest(Holder("h", 1), retry_failed, seen, may_publish)


@settings(max_examples=200, deadline=None)
@given(
    pasts=PASTS, now=NOW, seen=st.one_of(st.none(), st.integers(1, 9)), retry=st.booleans(), may_publish=st.booleans()
)
def test_nobody_is_granted_a_key_that_somebody_compiles(
    pasts: list[PastFailure], now: float, seen: int | None, *, retry: bool, may_publish: bool
) -> None:
    running = Running(10, Holder("other", 2), now - 1, now + 29)
    decision = decide(_request(retry_failed=retry, seen=seen, may_publish=may_publish), running, pasts, now)
    assert decision is running or isinstance(decision, Failed)


@settings(max_examples=200, deadline=None)
@given(PASTS, NOW, st.one_of(st.none(), st.integers(1, 9)))
def test_a_key_never_rests_longer_than_its_failures_are_remembered(
    pasts: list[PastFailure], now: float, seen: int | None
) -> None:
    decision = decide(_request(seen=seen), None, pasts, now)
    if isinstance(decision, Failed):
        assert 0 <= decision.expires_in <= max(DIAGNOSIS_MEMORY, rest_seconds(len(pasts)))
        later = decide(_request(), None, pasts, now + decision.expires_in + 0.001)
        # another failure may still be remembered then, but each wait ends, and there are no new ones
        for _ in pasts:
            if not isinstance(later, Failed):
                break
            now += decision.expires_in + 0.001
            decision = later
            later = decide(_request(), None, pasts, now + decision.expires_in + 0.001)
        assert isinstance(later, Grant)


@settings(max_examples=200, deadline=None)
@given(PASTS, NOW)
def test_whoever_asks_to_retry_is_never_told_of_old_failures(pasts: list[PastFailure], now: float) -> None:
    assert isinstance(decide(_request(retry_failed=True), None, pasts, now), Grant)
    assert isinstance(decide(_request(retry_failed=True, may_publish=False), None, pasts, now), NotGranted)


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=30))
def test_generations_rise_whatever_the_clock_does(times: list[float]) -> None:
    last = None
    for now in times:
        following = next_generation(last, now)
        assert last is None or following > last
        assert following >= int(now * 1000)
        last = following


@pytest.mark.parametrize("count", range(MANY_ATTEMPTS + 2))
def test_a_key_rests_after_exactly_so_many_failures(count: int) -> None:
    pasts = [_past(100.0 + number, "transient") for number in range(count)]
    decision = decide(_request(), None, pasts, 110.0)
    assert isinstance(decision, Failed) == (count >= MANY_ATTEMPTS)
    if isinstance(decision, Failed):
        assert decision.expires_in == pasts[-1].time + rest_seconds(count) - 110.0
