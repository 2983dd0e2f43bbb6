"""Uploads in the background: the job goes on, nothing is lost that could be kept, and no exit hangs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from client import cache as cache_module
from client.errors import Refused, Unreachable
from client.names import Kind
from client.transports.directory import DirectoryTransport
from client.uploads import Uploads
from client.wire import Ready
from tests.client.programs import build, compiled, document, entry_of
from tests.client.shared_store import SharedStore
from tests.fakes.waiting import HANG_SECONDS, wait_until


class Gate:
    """Holds uploads up until it is opened."""

    def __init__(self, store: SharedStore) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        store.faults["publish"] = self

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(HANG_SECONDS)


@pytest.fixture
def gate(store):
    made = Gate(store)
    yield made
    made.opened.set()


def test_a_job_goes_on_while_its_program_is_uploaded_and_the_others_wait_for_it(make_cache, store, gate):
    cache = make_cache(store, node="one", upload_grace=0.0)
    made = cache.get_or_compile(document(), compiled)
    assert gate.entered.wait(HANG_SECONDS)
    assert (Kind.GRAPH, document().key) not in store.entries
    assert make_cache(None, node="one").get_or_compile(document(), pytest.fail).neff == made.neff
    others: list[bytes] = []
    waiter = threading.Thread(
        target=lambda: others.append(make_cache(store, node="two").get_or_compile(document(), pytest.fail).neff)
    )
    waiter.start()
    gate.opened.set()
    waiter.join(HANG_SECONDS)
    assert others == [made.neff]


def test_a_lease_is_kept_alive_for_as_long_as_its_upload_takes(make_cache):
    store = SharedStore(ttl=1.0)
    gate = Gate(store)
    make_cache(store, upload_grace=0.0).get_or_compile(document(), compiled)
    held = store.leases[Kind.GRAPH, document().key]
    # one that ran out once is not renewed any more
    far = time.monotonic() + 3.0
    wait_until(lambda: held.ends > far, "the lease is renewed")
    gate.opened.set()


def test_who_holds_no_lease_waits_to_hear_which_build_stands(make_cache, store):
    store.faults["acquire"] = lambda: (_ for _ in ()).throw(Refused("no leases today", status=501))
    first = build()

    def somebody_was_faster():
        outputs = {"model.neff": first}
        store.publish(entry_of(document(), outputs), outputs, None)
        return compiled()

    assert make_cache(store, upload_grace=0.0).get_or_compile(document(), somebody_was_faster).neff == first


def test_a_lease_holder_keeps_what_it_loaded_though_another_build_wins(make_cache, store, gate):
    cache = make_cache(store, upload_grace=0.0)
    mine = cache.get_or_compile(document(), compiled)
    assert gate.entered.wait(HANG_SECONDS)
    outputs = {"model.neff": build()}
    del store.faults["publish"]
    store.publish(entry_of(document(), outputs), outputs, None)
    gate.opened.set()
    cache.close()
    assert cache.get_or_compile(document(), pytest.fail).neff == mine.neff
    assert cache.statistics.bytes_up == 0


def test_an_upload_that_fails_gives_the_lease_back(make_cache, store, caplog):
    store.faults["publish"] = lambda: (_ for _ in ()).throw(Unreachable("the connection broke"))
    cache = make_cache(store, upload_grace=0.0)
    cache.get_or_compile(document(), compiled)
    held = store.leases[Kind.GRAPH, document().key]
    wait_until(lambda: held.holder is None, "the lease is given back")
    assert held.failure.failure_class == "transient"
    cache.close()
    assert len(caplog.records) == 1


def test_what_finds_no_room_is_uploaded_at_once(make_cache, store, gate):
    cache = make_cache(store, upload_grace=0.0)
    cache._parts.uploads = Uploads(most=2)
    for number in range(2):
        cache.get_or_compile(document(f"{number}"), compiled)
    third = threading.Thread(target=cache.get_or_compile, args=(document("third"), compiled))
    third.start()
    wait_until(lambda: store.calls["publish"] == 2, "the third is uploading beside the first")
    assert third.is_alive()
    gate.opened.set()
    third.join(HANG_SECONDS)
    cache.close()
    assert len(store.entries) == 3


def test_uploads_keep_no_more_bytes_in_memory_than_allowed():
    opened = threading.Event()
    uploads = Uploads(most_bytes=100)
    assert uploads.offer(opened.wait, 60) is not None
    assert uploads.offer(opened.wait, 60) is None
    assert uploads.offer(opened.wait, 40) is not None
    opened.set()
    assert uploads.flush(20) == 0
    assert uploads.offer(opened.wait, 1) is None, "after the end nothing is left to the background"


def test_an_upload_that_breaks_does_not_end_the_others():
    done: list[int] = []
    uploads = Uploads()
    uploads.offer(lambda: 1 // 0, 1)
    uploads.offer(lambda: done.append(1), 1)
    assert uploads.flush(20) == 0
    assert done == [1]


def test_all_is_uploaded_before_a_job_ends(make_cache, store):
    store.faults["publish"] = lambda: time.sleep(0.1)
    cache = make_cache(store, upload_grace=0.0)
    for number in range(5):
        cache.get_or_compile(document(f"{number}"), compiled)
    cache.close()
    assert len(store.entries) == 5
    assert cache.statistics.bytes_up > 0


def test_a_server_that_takes_nothing_does_not_keep_a_job_from_ending(make_cache, store, gate, monkeypatch, caplog):
    monkeypatch.setattr(cache_module, "FLUSH_LIMIT", 0.2)
    cache = make_cache(store, upload_grace=0.0)
    for number in range(3):
        cache.get_or_compile(document(f"{number}"), compiled)
    cache.close()
    assert caplog.text.count("3 programs were not uploaded in time") == 1


def test_a_job_that_must_hear_of_faults_uploads_at_once(make_cache, store):
    store.faults["publish"] = lambda: (_ for _ in ()).throw(Unreachable("no"))
    with pytest.raises(Unreachable):
        make_cache(store, upload_grace=0.0, on_error="fail").get_or_compile(document(), compiled)


JOB = """
import os, sys, time
from client.cache import Cache
from client.settings import Settings
from client.transports.directory import DirectoryTransport
from pathlib import Path
from tests.client.programs import compiled, document

class Slow(DirectoryTransport):
    def publish(self, *arguments):
        print("uploading", flush=True)
        time.sleep(float(sys.argv[2]))
        return super().publish(*arguments)

base = Path(sys.argv[1])
cache = Cache(
    Settings(node_dir=base / "node"),
    open_transport=lambda: Slow(base / "shared", "default", lease_seconds=1.0),
    upload_grace=0.0,
)
made = cache.get_or_compile(document(), compiled)
if sys.argv[3] == "die":
    time.sleep(60)
elif sys.argv[3] == "exit at once":
    os._exit(0)
"""


def _job(base: Path, seconds: float, ending: str) -> subprocess.Popen[str]:
    (base / "shared").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", JOB, str(base), str(seconds), ending],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def _stored(base: Path) -> list[Path]:
    return list((base / "shared").rglob("entry.json"))


def test_an_interpreter_that_ends_uploads_first(tmp_path):
    process = _job(tmp_path, 0.5, "end")
    assert process.communicate(timeout=HANG_SECONDS)[0] == "uploading\n"
    assert process.returncode == 0
    assert len(_stored(tmp_path)) == 1


@pytest.mark.parametrize("ending", ["die", "exit at once"])
def test_a_process_that_is_lost_loses_its_upload_and_keeps_nobody_waiting(tmp_path, make_cache, ending):
    process = _job(tmp_path, 30, ending)
    assert process.stdout is not None
    try:
        if ending == "die":
            assert process.stdout.readline() == "uploading\n"
            wait_until(lambda: list((tmp_path / "node").rglob("entry.json")), "it is on this node")
            process.send_signal(signal.SIGKILL)
        process.wait(HANG_SECONDS)
    finally:
        process.kill()
        process.wait(HANG_SECONDS)
        process.stdout.close()
    assert _stored(tmp_path) == []
    kept = json.loads(next((tmp_path / "node").rglob("entry.json")).read_text())
    assert kept["key"] == document().key, "this node has its program"
    transport = DirectoryTransport(tmp_path / "shared", "default", lease_seconds=1.0)
    cache = make_cache(transport, node="another")
    assert cache.get_or_compile(document(), compiled).source == "compile"
    assert isinstance(transport.acquire(Kind.GRAPH, document().key, cache._parts.holder), Ready), (
        "its lease ended by itself"
    )
