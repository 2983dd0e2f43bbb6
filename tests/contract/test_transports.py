"""One suite of behaviour for every transport, against what really stands behind it."""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from client.errors import Failure, LeaseLost, Refused
from client.names import Kind
from client.signing.keys import PrivateKey
from client.signing.signer import Signer
from client.signing.trust import TrustedKey, TrustList
from client.transports.base import Damaged, Unwanted
from client.transports.wanted import wanting
from client.wire import Entry, Failed, Granted, Holder, NotGranted, Output, Producer, Ready, Wait
from tests.client.programs import build, document, entry_of
from tests.contract.shared_caches import Folder, HttpServer, S3Bucket, stored
from tests.fakes.waiting import HANG_SECONDS
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from client.transports.base import Transport
    from tests.contract.shared_caches import SharedCache
    from tests.support.servers import Server

ONE = Holder("host-1", 11, 0, "job")
TWO = Holder("host-2", 22, 3)
DIAGNOSIS = Failure("diagnosis", "NCC_EVRF001: no such operator", "the log\n" * 10)
KILLED = Failure("transient", "the compiler was killed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(params=["folder", "s3", "http"])
def cache(request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedCache]:
    with ExitStack() as closing:
        if request.param == "folder":
            yield Folder(tmp_path / "shared", closing)
        elif request.param == "s3":
            use_credentials(monkeypatch)
            yield S3Bucket(seaweedfs(), closing)
        else:
            yield HttpServer(request.getfixturevalue("server"), closing)


@pytest.fixture
def transport(cache: SharedCache) -> Transport:
    return cache.open()


@pytest.fixture
def other(cache: SharedCache) -> Transport:
    """A second node."""
    return cache.open()


class Program:
    """A program nobody compiled before, and a build of it."""

    def __init__(self, kind: Kind = Kind.GRAPH, project: str = "default", **outputs: bytes) -> None:
        self.document = document(os.urandom(8).hex(), kind)
        self.kind, self.key, self.project = kind, self.document.key, project
        self.outputs: dict[str, bytes] = {
            "model.neff": build(),
            **{name.replace("_", "."): data for name, data in outputs.items()},
        }
        self.entry = self.entry_of(self.outputs)

    def entry_of(self, outputs: Mapping[str, bytes]) -> Entry:
        return entry_of(self.document, outputs, self.project)

    def publish(self, transport: Transport, lease: Granted | None = None) -> Entry:
        published = transport.publish(self.entry, self.outputs, lease)
        assert published.created
        return published.entry

    def acquire(self, transport: Transport, holder: Holder = ONE, **asked: Any) -> Any:
        return transport.acquire(self.kind, self.key, holder, **asked)

    def lease(self, transport: Transport, holder: Holder = ONE) -> Granted:
        answer = self.acquire(transport, holder)
        assert isinstance(answer, Granted)
        return answer


@pytest.fixture
def program() -> Program:
    return Program(compile_log=b"all is well\n" * 100)


# Entries


def test_an_entry_that_the_caller_would_not_use_is_not_fetched_and_a_signed_one_comes_back_as_it_was(
    transport: Transport, other: Transport
) -> None:
    program, key = Program(compile_log=b"a log that zstd makes smaller\n" * 100), PrivateKey.generate()
    entry = Signer(key).sign(program.entry, program.outputs)
    assert transport.publish(entry, program.outputs, None).created
    with wanting(lambda _: False), pytest.raises(Unwanted) as raised:
        other.fetch(program.kind, program.key)
    assert raised.value.entry.signature == entry.signature
    with wanting(lambda found: found.signature is not None):
        fetched = other.fetch(program.kind, program.key)
    assert fetched is not None
    assert TrustList([TrustedKey(key.public, "ci")]).check(fetched.entry).name == "ci"
    assert other.entry(program.kind, program.key) == entry


def test_what_one_node_publishes_another_one_hits(transport: Transport, other: Transport, program: Program) -> None:
    program.publish(transport)
    found = other.fetch(program.kind, program.key)
    assert found is not None
    assert found.neff == program.outputs["model.neff"]
    assert found.entry.producer == program.entry.producer
    whole = other.entry(program.kind, program.key)
    assert whole is not None
    assert whole.key_document == program.document.to_json()
    for name, content in program.outputs.items():
        assert other.read_output(whole, name) == content
        assert other.read_output(found.entry, name) == content


def test_what_is_absent_is_none_and_no_error(transport: Transport, program: Program) -> None:
    assert transport.fetch(program.kind, program.key) is None
    assert transport.entry(program.kind, program.key) is None
    assert transport.read_output(program.entry, "model.neff") is None
    program.publish(transport)
    assert transport.read_output(program.entry, "never-made.txt") is None


def test_entries_of_one_kind_are_not_seen_in_another(transport: Transport, program: Program) -> None:
    program.publish(transport)
    for kind in set(Kind) - {program.kind}:
        assert transport.fetch(kind, program.key) is None


def test_entries_of_one_project_are_not_seen_in_another(cache: SharedCache, program: Program) -> None:
    program.publish(cache.open())
    assert cache.open("team-b").fetch(program.kind, program.key) is None


@pytest.mark.parametrize("project", ["0", "a" * 63, "team-b"])
def test_every_valid_project_name_works(cache: SharedCache, project: str) -> None:
    program = Program(project=project)
    transport = cache.open(project)
    program.publish(transport)
    assert transport.fetch(program.kind, program.key) is not None


@pytest.mark.parametrize("name", ["0", "a" * 64, "a..b", "x.zst", "entry.json", "lease-00000001.json"])
@pytest.mark.share(4)
def test_every_valid_output_name_works(transport: Transport, name: str) -> None:
    program = Program()
    program.outputs[name] = content = os.urandom(100)
    program.entry = program.entry_of(program.outputs)
    entry = program.publish(transport)
    assert transport.read_output(entry, name) == content


def test_labels_in_any_script_come_back(transport: Transport, program: Program) -> None:
    value = program.entry.to_json()
    value["producer"] = Producer("neff-cache/1", "узел-1", 'モデル 🧠 "quoted" \\ \u2028 é').to_json()
    entry = Entry.from_json(value)
    transport.publish(entry, program.outputs, None)
    found = transport.fetch(program.kind, program.key)
    assert found is not None
    assert found.entry.producer == entry.producer


def test_an_empty_side_output_hits_like_any_other(transport: Transport) -> None:
    program = Program(compile_log=b"")
    entry = program.publish(transport)
    for _ in range(3):
        assert transport.fetch(program.kind, program.key) is not None
        assert transport.read_output(entry, "compile.log") == b""


@pytest.mark.parametrize("compressible", [False, True])
def test_a_large_output_comes_back_whole(transport: Transport, other: Transport, *, compressible: bool) -> None:
    half = os.urandom(10 << 20)
    content = half + (half if not compressible else bytes(10 << 20))
    program = Program()
    program.outputs = {"model.neff": content}
    program.entry = program.entry_of(program.outputs)
    entry = program.publish(transport)
    output = entry.output()
    assert output is not None
    assert output.encoding == ("zstd" if compressible else "identity")
    assert (output.stored_size < output.size) == compressible
    found = other.fetch(program.kind, program.key)
    assert found is not None
    assert found.neff == content


def test_an_entry_whose_description_passes_a_header_is_hit_too(transport: Transport) -> None:
    program = Program(**{f"part_{number}": os.urandom(10) for number in range(40)})
    assert program.entry.to_header() is None
    program.publish(transport)
    found = transport.fetch(program.kind, program.key)
    assert found is not None
    assert found.neff == program.outputs["model.neff"]
    assert len(found.entry.outputs) == 41


def test_the_first_entry_wins(transport: Transport, other: Transport, program: Program) -> None:
    first = program.publish(transport)
    later = {**program.outputs, "model.neff": build()}
    published = other.publish(program.entry_of(later), later, None)
    assert not published.created
    assert published.entry.outputs == first.outputs
    found = other.fetch(program.kind, program.key)
    assert found is not None
    assert found.neff == program.outputs["model.neff"]


def test_publishing_twice_is_no_error(transport: Transport, program: Program) -> None:
    entry = program.publish(transport)
    again = transport.publish(program.entry, program.outputs, None)
    assert again.entry.outputs == entry.outputs


def test_writers_at_once_leave_one_whole_entry(cache: SharedCache) -> None:
    program = Program()
    builds = [{"model.neff": build(), "compile.log": os.urandom(300)} for _ in range(8)]
    transports = [cache.open() for _ in builds]
    start = threading.Barrier(len(builds))

    def write(number: int) -> Entry:
        start.wait(HANG_SECONDS)
        return transports[number].publish(program.entry_of(builds[number]), builds[number], None).entry

    with ThreadPoolExecutor(len(builds)) as pool:
        entries = list(pool.map(write, range(len(builds))))
    assert len({entry.outputs for entry in entries}) == 1
    found = transports[0].fetch(program.kind, program.key)
    assert found is not None
    log = transports[0].read_output(found.entry, "compile.log")
    assert {"model.neff": found.neff, "compile.log": log} in builds


def test_one_transport_serves_eight_threads(transport: Transport) -> None:
    programs = [Program() for _ in range(8)]

    def use(program: Program) -> bool:
        lease = program.lease(transport)
        transport.renew(program.kind, program.key, lease)
        program.publish(transport, lease)
        hits = [transport.fetch(program.kind, program.key) for _ in range(10)]
        return all(hit is not None and hit.neff == program.outputs["model.neff"] for hit in hits)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, programs))


def test_an_entry_under_a_key_that_is_not_its_own_is_refused(transport: Transport, program: Program) -> None:
    value = program.entry.to_json()
    value["key"] = Program().key
    with pytest.raises(Refused) as caught:
        transport.publish(Entry.from_json(value), program.outputs, None)
    assert (caught.value.status, caught.value.name) == (422, "wrong_key")


def test_bytes_that_are_not_those_named_are_refused(transport: Transport, program: Program) -> None:
    wrong = {**program.outputs, "model.neff": program.outputs["model.neff"][:-1] + b"!"}
    with pytest.raises(Refused) as caught:
        transport.publish(program.entry, wrong, None)
    assert (caught.value.status, caught.value.name) == (422, "wrong_digest")
    assert transport.fetch(program.kind, program.key) is None


def test_an_output_that_is_not_given_is_refused(transport: Transport, program: Program) -> None:
    with pytest.raises(Refused):
        transport.publish(program.entry, {"model.neff": program.outputs["model.neff"]}, None)
    assert transport.entry(program.kind, program.key) is None


# Leases


def test_one_of_many_is_granted_the_lease(cache: SharedCache, program: Program) -> None:
    transports = [cache.open() for _ in range(8)]
    start = threading.Barrier(len(transports))

    def ask(transport: Transport) -> Any:
        start.wait(HANG_SECONDS)
        return program.acquire(transport)

    with ThreadPoolExecutor(len(transports)) as pool:
        answers = list(pool.map(ask, transports))
    assert sum(isinstance(answer, Granted) for answer in answers) == 1
    assert sum(isinstance(answer, Wait) for answer in answers) == 7


def test_who_waits_learns_for_whom(transport: Transport, other: Transport, program: Program) -> None:
    lease = program.lease(transport, ONE)
    answer = program.acquire(other, TWO)
    assert isinstance(answer, Wait)
    assert (answer.generation, answer.holder) == (lease.generation, ONE)
    assert 0 < answer.expires_in <= lease.ttl_seconds
    assert answer.since


def test_who_waits_has_the_entry_when_it_is_published(transport: Transport, other: Transport, program: Program) -> None:
    lease = program.lease(transport)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(program.acquire, other, TWO, wait_seconds=20)
        program.publish(transport, lease)
        answer = waiting.result(HANG_SECONDS)
    assert isinstance(answer, Ready)
    assert answer.entry.key == program.key


def test_a_publish_ends_the_lease(transport: Transport, program: Program) -> None:
    lease = program.lease(transport)
    program.publish(transport, lease)
    with pytest.raises(LeaseLost):
        transport.renew(program.kind, program.key, lease)
    assert isinstance(program.acquire(transport), Ready)
    transport.release(program.kind, program.key, lease)


def test_a_publish_without_the_lease_counts_too(transport: Transport, other: Transport, program: Program) -> None:
    program.lease(transport)
    program.publish(other)
    assert isinstance(program.acquire(transport), Ready)


def test_a_released_lease_is_free_at_once(transport: Transport, other: Transport, program: Program) -> None:
    lease = program.lease(transport)
    transport.release(program.kind, program.key, lease)
    assert program.lease(other, TWO).generation > lease.generation


def test_who_waited_learns_of_the_failure(transport: Transport, other: Transport, program: Program) -> None:
    lease = program.lease(transport)
    seen = program.acquire(other, TWO)
    transport.release(program.kind, program.key, lease, DIAGNOSIS)
    answer = program.acquire(other, TWO, seen_generation=seen.generation)
    assert isinstance(answer, Failed)
    assert (answer.failure, answer.host, answer.replayed) == (DIAGNOSIS, ONE.host, False)
    assert answer.expires_in > 0


def test_a_failure_that_may_pass_is_free_to_try_again(transport: Transport, other: Transport, program: Program) -> None:
    lease = program.lease(transport)
    transport.release(program.kind, program.key, lease, KILLED)
    answer = program.acquire(other, TWO, seen_generation=lease.generation)
    assert isinstance(answer, Failed)
    assert (answer.failure, answer.expires_in) == (KILLED, 0)
    assert program.lease(other, TWO).generation > lease.generation


def test_who_insists_passes_over_what_others_were_told(transport: Transport, program: Program) -> None:
    lease = program.lease(transport)
    transport.release(program.kind, program.key, lease, DIAGNOSIS)
    answer = program.acquire(transport, retry_failed=True)
    assert isinstance(answer, Granted)
    assert answer.generation > lease.generation


def test_who_waits_learns_of_a_failure_in_the_same_call(transport: Transport, other: Transport) -> None:
    program = Program()
    lease = program.lease(transport)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(program.acquire, other, TWO, wait_seconds=20, seen_generation=lease.generation)
        transport.release(program.kind, program.key, lease, KILLED)
        answer = waiting.result(HANG_SECONDS)
    assert isinstance(answer, Failed)
    assert answer.failure == KILLED


def test_a_dead_holder_is_succeeded(
    cache: SharedCache, transport: Transport, other: Transport, program: Program
) -> None:
    lease = program.lease(transport)
    cache.run_out(program.entry)
    successor = program.lease(other, TWO)
    assert successor.generation > lease.generation
    with pytest.raises(LeaseLost):
        transport.renew(program.kind, program.key, lease)
    transport.release(program.kind, program.key, lease, DIAGNOSIS)
    other.renew(program.kind, program.key, successor)
    assert isinstance(program.acquire(transport, seen_generation=lease.generation), Wait)


def test_a_living_holder_keeps_its_lease(cache: SharedCache, transport: Transport, program: Program) -> None:
    lease = program.lease(transport)
    cache.run_out(program.entry)
    transport.renew(program.kind, program.key, lease)
    assert isinstance(program.acquire(cache.open(), TWO), Wait)


def test_a_lease_of_somebody_else_cannot_be_renewed_or_given_back(transport: Transport, program: Program) -> None:
    lease = program.lease(transport)
    forged = Granted("0" * 32, lease.generation, lease.ttl_seconds)
    with pytest.raises(LeaseLost):
        transport.renew(program.kind, program.key, forged)
    transport.release(program.kind, program.key, forged)
    transport.renew(program.kind, program.key, lease)


def test_renewing_what_was_never_granted_is_lost(transport: Transport, program: Program) -> None:
    with pytest.raises(LeaseLost):
        transport.renew(program.kind, program.key, Granted("0" * 32, 1, 30.0))


def test_who_may_not_publish_waits_but_is_never_granted(transport: Transport, other: Transport) -> None:
    program = Program()
    assert isinstance(program.acquire(other, TWO, may_publish=False), NotGranted)
    program.lease(transport)
    assert isinstance(program.acquire(other, TWO, may_publish=False), Wait)
    program.publish(transport)
    assert isinstance(program.acquire(other, TWO, may_publish=False), Ready)


# Damage


def flip(cache: SharedCache, entry: Entry, name: str) -> None:
    path = stored(entry, name)
    content = bytearray(cache.files.read(path))
    content[len(content) // 2] ^= 1
    cache.files.write(path, bytes(content))


@pytest.mark.parametrize("name", ["model.neff", "compile.log"])
def test_a_damaged_output_is_found_set_aside_and_made_again(
    cache: SharedCache, transport: Transport, name: str
) -> None:
    program = Program(compile_log=b"all is well\n" * 100)
    entry = program.publish(transport)
    flip(cache, entry, name)
    with pytest.raises(Damaged) as caught:
        transport.read_output(entry, name)
    assert caught.value.sha256 == hashlib.sha256(program.outputs[name]).hexdigest()
    assert transport.suspect(program.kind, program.key, caught.value.sha256) == "quarantined"
    assert transport.fetch(program.kind, program.key) is None
    lease = program.lease(transport)
    program.publish(transport, lease)
    found = transport.fetch(program.kind, program.key)
    assert found is not None
    assert transport.read_output(found.entry, name) == program.outputs[name]


def test_a_truncated_output_never_makes_a_key_ready(cache: SharedCache, transport: Transport, other: Transport) -> None:
    program = Program()
    entry = program.publish(transport)
    path = stored(entry, "model.neff")
    cache.files.write(path, cache.files.read(path)[:100])
    lease = program.lease(other)
    program.publish(other, lease)
    found = transport.fetch(program.kind, program.key)
    assert found is not None
    assert found.neff == program.outputs["model.neff"]


def test_a_missing_output_never_makes_a_key_ready(cache: SharedCache, transport: Transport) -> None:
    program = Program()
    entry = program.publish(transport)
    cache.files.remove(stored(entry, "model.neff"))
    lease = program.lease(transport)
    program.publish(transport, lease)
    assert transport.fetch(program.kind, program.key) is not None


@pytest.mark.parametrize("name", ["model.neff", "compile.log"])
@pytest.mark.parametrize("how", ["short", "gone"])
def test_who_publishes_without_a_lease_replaces_what_is_there_and_not_whole(
    cache: SharedCache, transport: Transport, other: Transport, how: str, name: str
) -> None:
    program = Program(compile_log=b"all is well\n" * 100)
    entry = program.publish(transport)
    path = stored(entry, name)
    if how == "gone":
        cache.files.remove(path)
    else:
        cache.files.write(path, cache.files.read(path)[:10])
    published = other.publish(program.entry, program.outputs, None)
    assert published.created
    found = transport.fetch(program.kind, program.key)
    assert found is not None
    assert transport.read_output(found.entry, name) == program.outputs[name]
    assert not other.publish(program.entry, program.outputs, None).created


def test_a_sound_output_is_found_sound(transport: Transport, program: Program) -> None:
    entry = program.publish(transport)
    assert transport.suspect(program.kind, program.key, entry.outputs[0].sha256) == "sound"
    assert transport.fetch(program.kind, program.key) is not None


def test_nothing_is_said_against_what_is_absent_or_not_named(transport: Transport, program: Program) -> None:
    assert transport.suspect(program.kind, program.key, "0" * 64) == "absent"
    program.publish(transport)
    with pytest.raises(Refused) as caught:
        transport.suspect(program.kind, program.key, "0" * 64)
    assert caught.value.status == 422


def test_a_good_entry_beside_a_damaged_one_is_left_alone(cache: SharedCache, transport: Transport) -> None:
    bad, good = Program(), Program()
    entry = bad.publish(transport)
    good.publish(transport)
    flip(cache, entry, "model.neff")
    assert transport.suspect(bad.kind, bad.key, entry.outputs[0].sha256) == "quarantined"
    assert transport.fetch(good.kind, good.key) is not None


# The rest


def test_nothing_is_withdrawn_at_first(transport: Transport) -> None:
    assert transport.revoked() == frozenset()


def test_a_closed_transport_may_be_used_again(transport: Transport, program: Program) -> None:
    program.publish(transport)
    transport.close()
    assert transport.fetch(program.kind, program.key) is not None


def test_the_address_is_fit_to_be_shown(cache: SharedCache, transport: Transport) -> None:
    assert "://" in transport.address
    assert getattr(cache, "environment", {}).get("NEURON_CACHE_TOKEN", "secret") not in transport.address


def test_an_output_is_stored_as_its_entry_says(cache: SharedCache, transport: Transport) -> None:
    program = Program(compile_log=b"all is well\n" * 100)
    entry = program.publish(transport)
    log = entry.output("compile.log")
    assert isinstance(log, Output)
    assert log.encoding == "zstd"
    assert len(cache.files.read(stored(entry, "compile.log"))) == log.stored_size < log.size
