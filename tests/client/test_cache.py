"""get_or_compile over real directories and a shared cache in memory."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from client.artifact import Compiled
from client.cache import Cache
from client.errors import CacheMissError, CompileError, ConfigurationError, Denied, Failure, Refused, Unreachable
from client.names import Kind
from client.settings import Settings
from client.transports.base import Withdrawn
from client.wire import Granted, Holder
from tests.client.programs import build, compiled, document, entry_of
from tests.client.shared_store import SharedStore
from tests.fakes.waiting import HANG_SECONDS

DIAGNOSIS = Failure("diagnosis", "NCC_EXYZ: this operator is not known", "line 1\nline 2 of the compiler's log")


class Compiler:
    """Counts its runs; each makes a new build."""

    def __init__(self, *failures: Exception | None, seconds: float = 0.0) -> None:
        self.runs = 0
        self.built: list[bytes] = []
        self._failures = list(failures)
        self._seconds = seconds

    def __call__(self) -> Compiled:
        self.runs += 1
        time.sleep(self._seconds)
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        result = compiled()
        self.built.append(result.neff)
        return result


def forbidden() -> Compiled:
    pytest.fail("the compiler was started")


def test_a_program_is_compiled_once_and_then_found_in_every_tier(make_cache, store):
    first = make_cache(store, node="one")
    compiler = Compiler()
    made = first.get_or_compile(document(), compiler)
    assert (made.source, made.neff) == ("compile", compiler.built[0])

    assert first.get_or_compile(document(), forbidden).source == "memory"
    assert make_cache(store, node="one").get_or_compile(document(), forbidden).source == "disk"
    remote = make_cache(store, node="two").get_or_compile(document(), forbidden)
    assert (remote.source, remote.neff) == ("remote", made.neff)
    assert make_cache(None, node="two").get_or_compile(document(), forbidden).source == "disk"


def test_kinds_never_mix(make_cache, store):
    cache = make_cache(store)
    graph = document(kind=Kind.GRAPH)
    cache.get_or_compile(graph, Compiler())
    assert cache.lookup(Kind.EAGER, graph.key) is None
    assert cache.lookup(Kind.GRAPH, graph.key) is not None


def test_lookup_compiles_nothing_and_brings_what_it_finds_to_this_node(make_cache, store):
    assert make_cache(store).lookup(Kind.GRAPH, document().key) is None
    make_cache(store, node="one").get_or_compile(document(), Compiler())
    found = make_cache(store, node="two").lookup(Kind.GRAPH, document().key)
    assert found is not None
    assert found.source == "remote"
    again = make_cache(None, node="two").lookup(Kind.GRAPH, document().key)
    assert again is not None
    assert again.source == "disk"


def test_threads_that_ask_for_one_key_share_one_compile(make_cache):
    cache = make_cache(node=None)
    compiler = Compiler(seconds=0.2)
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(cache.get_or_compile(document(), compiler).neff))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert compiler.runs == 1
    assert set(results) == {compiler.built[0]}
    assert len(results) == 8
    statistics = cache.statistics
    assert (statistics.lookups, statistics.misses, statistics.memory_hits) == (8, 1, 7)


def test_nodes_that_ask_at_once_share_one_compile(make_cache, store):
    compiler = Compiler(seconds=0.3)
    caches = [make_cache(store, node=f"node{number}") for number in range(4)]
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda cache=cache: results.append(cache.get_or_compile(document(), compiler).neff))
        for cache in caches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert compiler.runs == 1
    assert set(results) == {compiler.built[0]}
    assert sum(cache.statistics.waits for cache in caches) == 3


def test_a_job_without_any_tier_still_compiles(make_cache):
    cache = make_cache(None, node=None)
    assert cache.get_or_compile(document(), Compiler()).source == "compile"
    assert cache.get_or_compile(document(), forbidden).source == "memory"


def test_off_means_that_nothing_is_read_written_or_kept(make_cache, store, tmp_path):
    cache = make_cache(store, node="off", mode="off")
    compiler = Compiler()
    cache.get_or_compile(document(), compiler)
    cache.get_or_compile(document(), compiler)
    assert compiler.runs == 2
    assert not (tmp_path / "off").exists()
    assert not store.entries


def test_a_reader_never_publishes_but_keeps_what_it_compiled(make_cache, store):
    cache = make_cache(store, node="ro", mode="ro")
    cache.get_or_compile(document(), Compiler())
    assert not store.entries
    assert store.calls["publish"] == 0
    assert make_cache(None, node="ro").get_or_compile(document(), forbidden).source == "disk"


def test_must_hit_fails_at_a_miss_and_starts_no_compiler(make_cache, store):
    cache = make_cache(store, on_miss="fail")
    with pytest.raises(CacheMissError, match=document().key):
        cache.get_or_compile(document(), forbidden)
    make_cache(store, node="other").get_or_compile(document(), Compiler())
    assert cache.get_or_compile(document(), forbidden).source == "remote"
    assert cache.statistics.misses == 1


# A second build


def test_a_second_build_is_dropped_and_everybody_uses_the_one_that_was_first(make_cache, store):
    program = document()
    first = build()

    def somebody_was_faster() -> Compiled:
        outputs = {"model.neff": first}
        store.publish(entry_of(program, outputs), outputs, None)
        return compiled()

    used = make_cache(store, node="late").get_or_compile(program, somebody_was_faster)
    assert used.neff == first
    assert make_cache(None, node="late").get_or_compile(program, forbidden).neff == first


def test_a_second_build_is_used_if_the_first_cannot_be_fetched(make_cache, store):
    program = document()
    mine = compiled()

    def somebody_was_faster() -> Compiled:
        outputs = {"model.neff": build()}
        store.publish(entry_of(program, outputs), outputs, None)
        store.faults["fetch"] = _raise(Unreachable("gone"))
        return mine

    assert make_cache(store).get_or_compile(program, somebody_was_faster).neff == mine.neff


def test_without_a_lease_what_was_compiled_is_published_all_the_same(make_cache, store):
    store.faults["acquire"] = _raise(Refused("no leases today", status=501))
    made = make_cache(store).get_or_compile(document(), Compiler())
    assert store.fetch(Kind.GRAPH, document().key).neff == made.neff


def test_who_may_not_lease_compiles_and_publishes_nothing(make_cache, store):
    store.may_lease = False
    assert make_cache(store).get_or_compile(document(), Compiler()).source == "compile"
    assert store.calls["publish"] == 0


# Failures of the compiler


def test_a_diagnosis_reaches_the_caller_with_its_log_and_caches_nothing(make_cache, store):
    cache = make_cache(store)
    with pytest.raises(CompileError, match="line 2 of the compiler's log"):
        cache.get_or_compile(document(), Compiler(CompileError(DIAGNOSIS)))
    assert not store.entries
    assert make_cache(None).lookup(Kind.GRAPH, document().key) is None


def test_a_diagnosis_reaches_waiters_on_other_nodes_without_a_second_compile(make_cache, store):
    caches = [make_cache(store, node=f"node{number}") for number in range(3)]
    compiler = Compiler(*[CompileError(DIAGNOSIS)] * 3, seconds=0.3)
    errors = _in_threads(caches, compiler)
    assert compiler.runs == 1
    assert [type(error) for error in errors] == [CompileError] * 3
    assert all(error.failure.log == DIAGNOSIS.log for error in errors)
    assert sorted(error.origin is None for error in errors) == [False, False, True]


def test_a_diagnosis_reaches_other_processes_of_the_node_without_a_server(make_cache):
    caches = [make_cache(None, node="shared") for _ in range(3)]
    compiler = Compiler(*[CompileError(DIAGNOSIS)] * 3, seconds=0.3)
    errors = _in_threads(caches, compiler)
    assert compiler.runs == 1
    assert [error.failure for error in errors] == [DIAGNOSIS] * 3


def test_a_remembered_diagnosis_can_be_tried_again_on_demand(make_cache, store):
    with pytest.raises(CompileError):
        make_cache(store, node="a").get_or_compile(document(), Compiler(CompileError(DIAGNOSIS)))
    with pytest.raises(CompileError, match="s ago"):
        make_cache(store, node="a").get_or_compile(document(), forbidden)
    again = make_cache(store, node="a").get_or_compile(document(), Compiler(), retry_failed=True)
    assert again.source == "compile"
    assert make_cache(store, node="b").get_or_compile(document(), forbidden).source == "remote"


def test_a_transient_failure_is_tried_once_more_by_itself(make_cache, store):
    compiler = Compiler(CompileError(Failure("transient", "exit status 70")))
    assert make_cache(store).get_or_compile(document(), compiler).source == "compile"
    assert compiler.runs == 2


def test_a_failure_that_stays_transient_is_raised_but_remembered_by_nobody(make_cache, store):
    failing = Compiler(*[CompileError(Failure("transient", "exit status 70", "the log"))] * 2)
    with pytest.raises(CompileError, match="exit status 70"):
        make_cache(store).get_or_compile(document(), failing)
    assert make_cache(store).get_or_compile(document(), Compiler()).source == "compile"


def test_a_waiter_compiles_itself_after_a_failure_elsewhere_that_says_nothing_about_the_program(make_cache, store):
    there, here = make_cache(store, node="there"), make_cache(store, node="here")
    failing = Compiler(*[CompileError(Failure("resource", "[F137] out of memory"))] * 2, seconds=0.3)
    thread = threading.Thread(target=_in_threads, args=([there], failing))
    thread.start()
    while not failing.runs:
        time.sleep(0.01)
    assert here.get_or_compile(document(), Compiler()).source == "compile"
    thread.join(HANG_SECONDS)
    assert here.statistics.waits == 1


def test_after_failures_elsewhere_that_go_on_a_node_compiles_alone_and_waits_no_longer_than_said(make_cache, store):
    key = document().key
    for _ in range(3):
        lease = store.acquire(Kind.GRAPH, key, Holder("elsewhere", 1), retry_failed=True)
        assert isinstance(lease, Granted)
        store.release(Kind.GRAPH, key, lease, Failure("resource", "out of memory"))
    slept: list[float] = []
    cache = make_cache(store, sleep=slept.append)
    assert cache.get_or_compile(document(), Compiler()).source == "compile"
    assert len(slept) == 1
    assert 50 < slept[0] <= 60
    assert (Kind.GRAPH, key) in store.entries


@pytest.mark.parametrize(
    "outputs", [{}, {"model.neff": b""}, {"model.neff": build()[:-20]}, {"model.neff": b"x" * 2000}]
)
def test_a_compiler_that_ends_well_without_a_whole_program_publishes_nothing(make_cache, store, outputs):
    cache = make_cache(store)
    with pytest.raises(CompileError, match="ended well but made") as raised:
        cache.get_or_compile(document(), lambda: Compiled(outputs, 0.1))
    failure = raised.value.failure
    assert failure.failure_class == "transient"
    kept = Path(failure.text.rpartition(" and its log is kept in ")[2])
    assert f"its key is graph/{document().key}" in kept.read_text()
    assert not store.entries
    assert make_cache(None).lookup(Kind.GRAPH, document().key) is None


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1), ValueError("a bug of the caller")])
def test_an_interrupted_compile_gives_its_lease_back_at_once(make_cache, store, interrupt):
    def interrupted() -> Compiled:
        raise interrupt

    with pytest.raises(type(interrupt)):
        make_cache(store, node="one").get_or_compile(document(), interrupted)
    assert store.leases[Kind.GRAPH, document().key].holder is None
    assert make_cache(store, node="two").get_or_compile(document(), Compiler()).source == "compile"
    assert make_cache(None, node="one").get_or_compile(document(), Compiler()).source == "compile"


# Leases


def test_a_compile_longer_than_the_lease_keeps_it_and_no_second_one_starts(make_cache):
    store = SharedStore(ttl=1.0)
    compiler = Compiler(seconds=2.5)
    caches = [make_cache(store, node=f"node{number}") for number in range(2)]
    _in_threads(caches, compiler)
    assert compiler.runs == 1
    assert store.calls["renew"] >= 3


def test_a_compile_whose_lease_is_lost_is_finished_and_published(make_cache):
    store = SharedStore(ttl=0.2)
    store.faults["renew"] = _raise(Unreachable("no answer"))
    made = make_cache(store).get_or_compile(document(), Compiler(seconds=0.4))
    assert store.fetch(Kind.GRAPH, document().key).neff == made.neff


def test_a_dead_holder_is_succeeded_within_the_lease_time(make_cache):
    store = SharedStore(ttl=0.5)
    store.acquire(Kind.GRAPH, document().key, Holder("dead", 1))
    assert make_cache(store).get_or_compile(document(), Compiler()).source == "compile"


def test_a_waiter_gives_up_at_its_limit_and_compiles_alone(make_cache, store, caplog):
    store.acquire(Kind.GRAPH, document().key, Holder("slow", 1))
    cache = make_cache(store, wait_limit=0.3)
    assert cache.get_or_compile(document(), Compiler()).source == "compile"
    assert "takes too long" in caplog.text


def test_a_waiter_says_once_whom_it_waits_for(make_cache, caplog):
    store = SharedStore(ttl=1000)
    now = [0.0]
    store.faults["acquire"] = lambda: now.__setitem__(0, now[0] + 10)
    store.acquire(Kind.GRAPH, document().key, Holder("node7", 4242, rank=3))
    cache = make_cache(store, wait_limit=60, clock=lambda: now[0], sleep=lambda seconds: None)
    store.acquire = _impatient(store.acquire)
    cache.get_or_compile(document(), Compiler())
    said = [record.message for record in caplog.records if "waiting for" in record.message]
    assert len(said) == 1
    assert "node7, process 4242, rank 3" in said[0]


def test_a_lease_that_is_ready_with_nothing_behind_it_is_asked_for_once_more(make_cache, store):
    make_cache(store, node="first").get_or_compile(document(), Compiler())
    store.faults["fetch"] = lambda: None
    store.fetch = lambda kind, key: store.calls.update(["fetch"])
    cache = make_cache(store, node="second")
    assert cache.get_or_compile(document(), Compiler()).source == "compile"
    assert store.calls["acquire"] == 1 + 2


# Damage


def test_damage_in_the_shared_cache_is_reported_and_made_good(make_cache, store, caplog):
    make_cache(store, node="one").get_or_compile(document(), Compiler())
    store.damage(Kind.GRAPH, document().key)
    made = make_cache(store, node="two").get_or_compile(document(), Compiler())
    assert made.source == "compile"
    assert store.fetch(Kind.GRAPH, document().key).neff == made.neff
    assert "compiling it again" in caplog.text


def test_wrong_bytes_of_a_sound_entry_cost_a_compile_and_change_nothing(make_cache, store):
    good = make_cache(store, node="one").get_or_compile(document(), Compiler())
    leases = store.calls["acquire"]
    stored = dict(store.outputs)
    store.damage(Kind.GRAPH, document().key)
    store.faults["suspect"] = lambda: store.outputs.update(stored)  # the way to us was at fault, not the store
    made = make_cache(store, node="two").get_or_compile(document(), Compiler())
    assert made.source == "compile"
    assert store.calls["acquire"] == leases
    assert store.fetch(Kind.GRAPH, document().key).neff == good.neff


def test_the_program_of_another_key_is_never_run_though_its_bytes_are_whole(make_cache, store, caplog):
    make_cache(store, node="one").get_or_compile(document("other"), Compiler())
    wrong = store.fetch(Kind.GRAPH, document("other").key)
    store.fetch = lambda kind, key: wrong
    compiler = Compiler()
    made = make_cache(store, node="two").get_or_compile(document("mine"), compiler)
    assert made.neff == compiler.built[0]
    assert "cannot be trusted" in caplog.text


def test_withdrawn_entries_leave_the_node_at_the_first_request(make_cache, store):
    poisoned, good = document("poisoned"), document("good")
    for program in (poisoned, good):
        make_cache(None, node="one").get_or_compile(program, Compiler())
    held = make_cache(None, node="one").lookup(Kind.GRAPH, poisoned.key)
    store.withdrawn.add(Withdrawn(Kind.GRAPH, poisoned.key, held.entry.output().sha256))
    # this key was poisoned too, but what the node holds is a good entry that was published afterwards
    store.withdrawn.add(Withdrawn(Kind.GRAPH, good.key, "0" * 64))
    make_cache(store, node="one").get_or_compile(document("other"), Compiler())
    _until(lambda: make_cache(None, node="one").lookup(Kind.GRAPH, poisoned.key) is None)
    assert make_cache(None, node="one").lookup(Kind.GRAPH, good.key) is not None


# Faults of the server

FAULTS = {
    "gone": Unreachable("connection refused"),
    "denied": Denied("401"),
    "throttled": Refused("slow down", status=429),
    "conflict": Refused("conflict", status=409),
    "too large": Refused("too large", status=413),
    "broken": Refused("internal error", status=500),
    "full": Refused("disk full", status=507),
    "bug": RuntimeError("a fault in the transport itself"),
}


@pytest.mark.parametrize("method", ["fetch", "acquire", "publish", "renew", "release", "suspect", "revoked", "close"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_the_server_reaches_the_job_and_each_is_warned_of_once(make_cache, store, caplog, method, fault):
    store.faults[method] = _raise(FAULTS[fault])
    cache = make_cache(store)
    for number in range(5):
        assert cache.get_or_compile(document(f"program {number}"), Compiler()).source == "compile"
    cache.close()
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (1 if method in ("fetch", "acquire", "publish", "close") else 0)


@pytest.mark.parametrize("method", ["fetch", "acquire", "publish"])
def test_a_job_that_asks_for_it_fails_with_the_cache(make_cache, store, method):
    store.faults[method] = _raise(Unreachable("connection refused"))
    cache = make_cache(store, on_error="fail")
    with pytest.raises(Unreachable, match="connection refused"):
        cache.get_or_compile(document(), Compiler())


def test_an_url_that_means_nothing_shares_nothing_and_says_so(tmp_path, caplog):
    def refused() -> Any:
        raise ConfigurationError("'htp:/x' is no address: did you mean http://x?")

    cache = Cache(Settings(node_dir=tmp_path), open_transport=refused)
    assert cache.get_or_compile(document(), Compiler()).source == "compile"
    cache.close()
    assert "did you mean http://x?" in caplog.text


def test_several_caches_in_one_process_keep_apart(make_cache):
    one, two = make_cache(node="one"), make_cache(node="two")
    one.get_or_compile(document(), Compiler())
    assert two.get_or_compile(document(), Compiler()).source == "compile"
    assert one.statistics.lookups == two.statistics.lookups == 1


def test_each_lookup_is_one_hit_or_one_miss(make_cache, store):
    cache = make_cache(store)
    programs = [document(f"program {number % 3}") for number in range(9)]
    for program in programs:
        cache.get_or_compile(program, Compiler())
    with pytest.raises(CompileError):
        cache.get_or_compile(document("bad"), Compiler(CompileError(DIAGNOSIS)))
    cache.lookup(Kind.EAGER, hashlib.sha256(b"absent").hexdigest())
    statistics = cache.statistics
    assert statistics.lookups == 11 == sum(statistics.hits.values()) + statistics.misses
    assert statistics.keys == {program.key for program in programs}
    assert set(statistics.by_kind) == {"graph", "eager"}
    assert statistics.compiles == 4


def _raise(error: Exception) -> Any:
    def fault() -> None:
        raise error

    return fault


def _impatient(acquire: Any) -> Any:
    """Let the store answer at once, so that the test's clock alone decides."""

    def ask(*args: Any, **options: Any) -> Any:
        return acquire(*args, **{**options, "wait_seconds": 0})

    return ask


def _until(condition: Any, seconds: float = HANG_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _in_threads(caches: list[Cache], compiler: Compiler) -> list[Any]:
    """Ask all caches at once for one program; return their errors, in no order."""
    errors: list[Any] = []

    def ask(cache: Cache) -> None:
        try:
            cache.get_or_compile(document(), compiler)
        except CompileError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    return errors
