"""A shared bucket as stores and networks really are: careless, forbidden, throttled, deaf, forgetful of answers."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partialmethod
from typing import TYPE_CHECKING, Any

import pytest

from client.errors import ConfigurationError, Denied, Failure, LeaseLost, Refused, Unreachable
from client.layout import BAD_PREFIX, ENTRY_FILE, entry_folder, lease_file
from client.s3.bucket import Bucket
from client.s3.multipart import Multiparts
from client.s3.url import BucketUrl
from client.transports import open_transport
from client.transports.base import Damaged
from client.transports.direct_lease import TTL_SECONDS
from client.transports.limits import Limits
from client.transports.s3 import S3Transport
from client.transports.s3_bucket import RETRY_SECONDS
from client.wire import Failed, Granted, Holder, NotGranted, Ready, Wait
from tests.client.programs import build, document, entry_of
from tests.fakes.waiting import HANG_SECONDS
from tests.support.s3 import all_objects, juicefs, seaweedfs, use_credentials
from tests.support.s3_faults import PassedTime, fault_proxy
from tests.support.stored import FilesInBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from client.wire import Entry
    from tests.support.s3_faults import FaultProxy, Seen

pytestmark = pytest.mark.once

ALWAYS = 1 << 30
HOLDER, OTHER = Holder("node", 1), Holder("other-node", 2)
DOCUMENT = document()
KIND, KEY = DOCUMENT.kind, DOCUMENT.key
OUTPUTS = {"model.neff": build(), "compile.log": b"all is well\n" * 100}
LARGE = {"model.neff": os.urandom(9 << 20)}
FOLDER = entry_folder("default", KIND, KEY)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch)


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with fault_proxy(seaweedfs()) as running:
        yield running


@pytest.fixture
def url() -> str:
    """Return a place in the bucket that nobody else uses."""
    return seaweedfs().new_url()


@pytest.fixture
def files(url: str) -> Iterator[FilesInBucket]:
    files = FilesInBucket(url)
    yield files
    files.close()


@pytest.fixture
def clock() -> PassedTime:
    return PassedTime()


@pytest.fixture
def opened(clock: PassedTime) -> Iterator[Callable[..., S3Transport]]:
    """Return a function that opens the bucket at a URL, in time that passes only in sleep."""
    with ExitStack() as closing:

        def open_it(url: str, **options: Any) -> S3Transport:
            policy = clock.policy(seconds=RETRY_SECONDS)
            transport = S3Transport(
                url, "default", policy=policy, **{"monotonic": lambda: clock.now, "sleep": clock.sleep, **options}
            )
            closing.callback(transport.close)
            return transport

        yield open_it


@pytest.fixture
def transport(opened: Callable[..., S3Transport], proxy: FaultProxy, url: str) -> S3Transport:
    """Return the bucket behind the proxy."""
    return opened(proxy.url(BucketUrl.parse(url).prefix))


@pytest.fixture
def other(opened: Callable[..., S3Transport], url: str) -> S3Transport:
    """Return the bucket as another node has it, past the proxy."""
    return opened(url)


def publish(transport: S3Transport, outputs: Mapping[str, bytes] = OUTPUTS, lease: Granted | None = None) -> Entry:
    published = transport.publish(entry_of(DOCUMENT, outputs), outputs, lease)
    assert published.created
    return published.entry


def granted(transport: S3Transport, holder: Holder = HOLDER) -> Granted:
    answer = transport.acquire(KIND, KEY, holder)
    assert isinstance(answer, Granted)
    return answer


def works(transport: S3Transport) -> bool:
    """Take a lease, publish, hit."""
    lease = granted(transport)
    transport.renew(KIND, KEY, lease)
    publish(transport, lease=lease)
    found = transport.fetch(KIND, KEY)
    return found is not None and found.neff == OUTPUTS["model.neff"]


def state(files: FilesInBucket, generation: int = 1) -> str:
    return str(json.loads(files.read(f"{FOLDER}/{lease_file(generation)}"))["state"])


# What stores lack


def refuses_to_share(transport: S3Transport) -> bool:
    for call in (lambda: transport.acquire(KIND, KEY, HOLDER), lambda: publish(transport)):
        with pytest.raises(Refused, match=r"cannot be shared safely") as caught:
            call()
        assert caught.value.name == "no_create_only"
    return transport.fetch(KIND, KEY) is None


def test_a_store_that_ignores_create_only_gets_no_lease_and_no_entry(opened: Callable[..., S3Transport]) -> None:
    assert refuses_to_share(opened(juicefs().new_url()))


def test_a_store_that_forbids_create_only_gets_no_lease_and_no_entry(transport: S3Transport, proxy: FaultProxy) -> None:
    proxy.break_next("PUT", header="if-none-match", status=501, code="NotImplemented", times=ALWAYS)
    assert refuses_to_share(transport)


def test_a_write_refused_for_another_reason_is_not_taken_for_a_store_without_create_only(
    transport: S3Transport, proxy: FaultProxy
) -> None:
    proxy.break_next("PUT", status=400, code="AuthorizationHeaderMalformed", times=2)
    with pytest.raises(Refused, match=r"another region") as caught:
        transport.acquire(KIND, KEY, HOLDER)
    assert caught.value.name != "no_create_only"
    assert works(transport)


def test_create_only_is_tried_once_in_a_process(transport: S3Transport, proxy: FaultProxy, other: S3Transport) -> None:
    other.acquire(KIND, KEY, OTHER)
    for _ in range(3):
        transport.acquire(KIND, KEY, HOLDER)
    assert proxy.count("PUT", "tmp-create-only") == 1


def test_a_store_without_conditional_replacement_still_leases(transport: S3Transport, proxy: FaultProxy) -> None:
    proxy.break_next("PUT", header="if-match", status=501, code="NotImplemented", times=ALWAYS)
    assert works(transport)


def test_a_store_that_never_meets_a_condition_still_leases(transport: S3Transport, proxy: FaultProxy) -> None:
    proxy.break_next("PUT", header="if-match", status=412, code="PreconditionFailed", times=ALWAYS)
    assert works(transport)


def test_a_store_without_conditional_completion_still_takes_large_outputs(
    transport: S3Transport, proxy: FaultProxy, url: str
) -> None:
    proxy.break_next("POST", "uploadId", header="if-none-match", status=501, code="NotImplemented", times=ALWAYS)
    publish(transport, LARGE)
    found = transport.fetch(KIND, KEY)
    assert found is not None
    assert found.neff == LARGE["model.neff"]
    assert not [name for name in all_objects(url) if name.startswith("unfinished")]


def test_a_store_that_hides_its_time_grants_nothing(transport: S3Transport, proxy: FaultProxy) -> None:
    proxy.hidden_headers.add("date")
    with pytest.raises(Unreachable, match=r"without a Date"):
        transport.acquire(KIND, KEY, HOLDER)


def test_a_lease_that_is_listed_and_cannot_be_read_holds_nobody_up_for_ever(
    transport: S3Transport, other: S3Transport, proxy: FaultProxy
) -> None:
    granted(other)
    proxy.break_next("GET", "/lease-", status=404, code="NoSuchKey", times=ALWAYS)
    with pytest.raises(Unreachable, match=r"is listed"):
        transport.acquire(KIND, KEY, HOLDER)


# Rights


def only_reads(proxy: FaultProxy) -> None:
    for method in ("PUT", "POST", "DELETE"):
        proxy.break_next(method, status=403, code="AccessDenied", times=ALWAYS)


def test_who_may_only_read_has_hits_and_is_granted_nothing(
    transport: S3Transport, other: S3Transport, proxy: FaultProxy
) -> None:
    only_reads(proxy)
    assert isinstance(transport.acquire(KIND, KEY, HOLDER), NotGranted)
    publish(other)
    assert transport.fetch(KIND, KEY) is not None
    assert isinstance(transport.acquire(KIND, KEY, HOLDER), Ready)
    another = document("another")
    with pytest.raises(Denied, match=r"s3:PutObject"):
        transport.publish(entry_of(another, OUTPUTS), OUTPUTS, None)


def test_who_may_only_read_waits_for_a_living_holder_and_not_for_a_dead_one(
    transport: S3Transport, other: S3Transport, proxy: FaultProxy, clock: PassedTime
) -> None:
    only_reads(proxy)
    granted(other)
    assert isinstance(transport.acquire(KIND, KEY, HOLDER), Wait)
    clock.now += TTL_SECONDS - 1
    assert isinstance(transport.acquire(KIND, KEY, HOLDER), Wait)
    clock.now += 2
    assert isinstance(transport.acquire(KIND, KEY, HOLDER), NotGranted)


def test_damage_that_we_may_not_set_aside_is_no_reason_to_stop_reading(
    transport: S3Transport, other: S3Transport, proxy: FaultProxy, files: FilesInBucket
) -> None:
    only_reads(proxy)
    entry = publish(other)
    files.write(f"{FOLDER}/{entry.outputs[0].sha256}", bytes(entry.outputs[0].stored_size))
    with pytest.raises(Damaged):
        transport.fetch(KIND, KEY)
    with pytest.raises(Refused) as caught:
        transport.suspect(KIND, KEY, entry.outputs[0].sha256)
    assert caught.value.name == "permission"


def test_a_missing_right_to_read_is_not_taken_for_a_miss(
    transport: S3Transport, other: S3Transport, proxy: FaultProxy
) -> None:
    publish(other)
    proxy.break_next("GET", "entry.json", status=403, code="AccessDenied", times=ALWAYS)
    with pytest.raises(Denied, match=r"s3:GetObject") as caught:
        transport.fetch(KIND, KEY)
    assert "s3:ListBucket" not in str(caught.value)


def test_who_may_not_list_learns_why_a_miss_looks_like_a_missing_right(
    transport: S3Transport, other: S3Transport, proxy: FaultProxy
) -> None:
    proxy.break_next("GET", status=403, code="AccessDenied", times=ALWAYS)
    with pytest.raises(Denied, match=r"without s3:ListBucket an absent object is answered like that too"):
        transport.fetch(KIND, KEY)
    proxy.faults.clear()
    publish(other)
    assert transport.fetch(KIND, KEY) is not None


def test_wrong_keys_are_denied_in_one_sentence_without_the_secret(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch, secret="another-secret")
    transport = S3Transport(url, "default")
    with pytest.raises(Denied) as caught:
        transport.fetch(KIND, KEY)
    assert "another-secret" not in str(caught.value)
    transport.close()


def test_no_keys_at_all_are_said(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(Denied, match=r"no credentials"):
        S3Transport(url, "default").fetch(KIND, KEY)


def test_a_bucket_that_is_not_there_is_said(opened: Callable[..., S3Transport]) -> None:
    with pytest.raises(Unreachable, match=r"'no-such-bucket' .* does not exist"):
        opened(f"s3://no-such-bucket/a?endpoint={seaweedfs().endpoint}").fetch(KIND, KEY)


# Slow, busy, gone


def test_a_store_that_throttles_for_a_moment_is_waited_for(transport: S3Transport, proxy: FaultProxy) -> None:
    for method in ("GET", "PUT"):
        proxy.break_next(method, status=503, code="SlowDown", times=2)
    assert works(transport)


def test_a_store_that_asks_once_for_a_minute_loses_no_entry(url: str, proxy: FaultProxy) -> None:
    # with the pauses that jobs have
    transport = S3Transport(proxy.url(BucketUrl.parse(url).prefix), "default")
    proxy.break_next("PUT", status=503, code="SlowDown", headers={"Retry-After": "60"})
    assert works(transport)
    transport.close()


def test_a_store_that_throttles_for_long_is_done_without(
    transport: S3Transport, proxy: FaultProxy, clock: PassedTime
) -> None:
    proxy.break_next("GET", status=503, code="SlowDown", times=ALWAYS)
    with pytest.raises(Unreachable, match=r"throttled"):
        transport.fetch(KIND, KEY)
    assert 1 < len(clock.slept) < 20
    assert sum(clock.slept) < RETRY_SECONDS


def test_a_dead_endpoint_is_unreachable(opened: Callable[..., S3Transport], clock: PassedTime) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        transport = opened(f"s3://bucket/a?endpoint=http://127.0.0.1:{unused.getsockname()[1]}")
        for call in (lambda: transport.fetch(KIND, KEY), lambda: transport.acquire(KIND, KEY, HOLDER)):
            with pytest.raises(Unreachable):
                call()
    assert sum(clock.slept) < 2 * RETRY_SECONDS


def test_a_deaf_endpoint_costs_one_wait(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        # what takes longer than RetryPolicy.seconds is not tried again; scaled down here
        limits = Limits(connect=0.5, answer=0.5)
        policy = PassedTime().policy(seconds=0.0)
        transport = S3Transport(
            f"s3://bucket/a?endpoint=http://127.0.0.1:{deaf.getsockname()[1]}", "default", limits=limits, policy=policy
        )
        with pytest.raises(Unreachable, match=r"ReadTimeoutError"):
            transport.fetch(KIND, KEY)


def test_an_output_that_breaks_off_is_read_on(transport: S3Transport, proxy: FaultProxy) -> None:
    entry = publish(transport, LARGE)
    proxy.break_next("GET", entry.outputs[0].sha256, cut_after=5 << 20)
    found = transport.fetch(KIND, KEY)
    assert found is not None
    assert found.neff == LARGE["model.neff"]


def test_an_output_that_always_breaks_off_is_unreachable_and_not_damaged(
    transport: S3Transport, proxy: FaultProxy
) -> None:
    entry = publish(transport)
    proxy.break_next("GET", entry.outputs[0].sha256, cut_after=10, times=ALWAYS)
    for call in (
        lambda: transport.fetch(KIND, KEY),
        lambda: transport.suspect(KIND, KEY, entry.outputs[0].sha256),
    ):
        with pytest.raises(Unreachable):
            call()
    proxy.faults.clear()
    assert transport.fetch(KIND, KEY) is not None


def test_a_full_store_is_said_and_leaves_no_entry(
    transport: S3Transport, proxy: FaultProxy, files: FilesInBucket
) -> None:
    lease = granted(transport)
    proxy.break_next("PUT", entry_of(DOCUMENT, OUTPUTS).outputs[0].sha256, status=507, code="InsufficientStorage")
    with pytest.raises(Refused) as caught:
        publish(transport, lease=lease)
    assert (caught.value.status, caught.value.name) == (507, "store_full")
    assert f"{FOLDER}/{ENTRY_FILE}" not in files.names()
    publish(transport, lease=lease)


# Answers that are lost


def test_a_lease_whose_answer_was_lost_is_ours(
    transport: S3Transport, other: S3Transport, proxy: FaultProxy, files: FilesInBucket
) -> None:
    proxy.break_next("PUT", "/lease-", applied=True)
    lease = granted(transport)
    assert isinstance(other.acquire(KIND, KEY, OTHER), Wait)
    proxy.break_next("PUT", "/lease-", applied=True)
    # as where a store gives every write a tag of its own: the second try finds another state, which is ours
    proxy.break_next("PUT", "/lease-", header="if-match", status=412, code="PreconditionFailed")
    transport.renew(KIND, KEY, lease)
    proxy.break_next("PUT", "/lease-", applied=True)
    transport.release(KIND, KEY, lease)
    assert state(files) == "released"


def test_an_entry_whose_answer_was_lost_counts_as_created(transport: S3Transport, proxy: FaultProxy) -> None:
    proxy.break_next("PUT", ENTRY_FILE, applied=True)
    publish(transport)


def test_a_description_of_an_entry_is_never_written_in_parts(transport: S3Transport, proxy: FaultProxy) -> None:
    """Of several uploads in parts that are completed at one moment, more than one may win."""
    wide = replace(DOCUMENT, extra={"text": "x" * (9 << 20)})
    transport.publish(entry_of(wide, OUTPUTS), OUTPUTS, None)
    assert transport.fetch(wide.kind, wide.key) is not None
    assert proxy.count("PUT", ENTRY_FILE) == 1
    assert proxy.count("POST") == 0


# The lease


def test_a_heartbeat_that_comes_late_does_not_revive_a_lease(
    transport: S3Transport, other: S3Transport, files: FilesInBucket
) -> None:
    lease = granted(transport)
    beating = transport._at(KIND, KEY)
    seen = beating.read(lease_file(1))
    assert seen is not None
    transport.release(KIND, KEY, lease)
    with pytest.raises(LeaseLost):
        beating.replace(lease_file(1), seen[0])
    assert state(files) == "released"
    assert granted(other, OTHER).generation == 2


def test_a_heartbeat_in_between_does_not_keep_a_lease_from_being_given_back(
    transport: S3Transport, proxy: FaultProxy, files: FilesInBucket
) -> None:
    """Where a store gives every write a tag of its own, the same bytes or not."""
    lease = granted(transport)
    proxy.break_next("PUT", "/lease-", header="if-match", status=412, code="PreconditionFailed")
    transport.release(KIND, KEY, lease)
    assert state(files) == "released"


def test_giving_back_a_lost_lease_leaves_the_new_holder_alone(
    opened: Callable[..., S3Transport], url: str, other: S3Transport, files: FilesInBucket
) -> None:
    quick = opened(url, lease_seconds=0.01)
    lease = granted(quick)
    waited = other.acquire(KIND, KEY, OTHER, wait_seconds=1)
    while isinstance(waited, Wait):  # the store's time is told in whole seconds
        threading.Event().wait(0.2)
        waited = other.acquire(KIND, KEY, OTHER, wait_seconds=1)
    assert isinstance(waited, Granted)
    quick.release(KIND, KEY, lease, Failure("transient", "killed"))
    with pytest.raises(LeaseLost):
        quick.renew(KIND, KEY, lease)
    assert (state(files, 1), state(files, 2)) == ("held", "held")
    other.renew(KIND, KEY, waited)
    publish(other, lease=waited)
    assert [name for name in files.names() if "/lease-" in name] == [f"{FOLDER}/{lease_file(2)}"]
    assert state(files, 2) == "released"


def test_who_waits_asks_less_and_less_often_and_not_in_step(
    opened: Callable[..., S3Transport], url: str, other: S3Transport, clock: PassedTime
) -> None:
    granted(other)
    bounds: list[tuple[float, float]] = []

    def middle(low: float, high: float) -> float:
        bounds.append((low, high))
        return (low + high) / 2

    waiter = opened(url, uniform=middle)
    assert isinstance(waiter.acquire(KIND, KEY, HOLDER, wait_seconds=25), Wait)
    assert {low for low, _ in bounds} == {0.5}
    assert [high for _, high in bounds] == sorted(high for _, high in bounds)
    assert bounds[-1][1] == 5
    assert sum(clock.slept) == 25


def test_who_waited_in_a_bucket_learns_of_the_failure(transport: S3Transport, other: S3Transport) -> None:
    lease = granted(transport)
    failure = Failure("diagnosis", "no such operator", "log")
    transport.release(KIND, KEY, lease, failure)
    answer = other.acquire(KIND, KEY, OTHER, seen_generation=lease.generation)
    assert isinstance(answer, Failed)
    assert answer.failure == failure


# Large outputs, and what is left over


def test_parts_that_a_killed_publisher_left_go_with_the_next_publish(transport: S3Transport, url: str) -> None:
    bucket = transport._bucket._mine()
    upload = bucket.multiparts.begin(f"{FOLDER}/{'a' * 64}")
    bucket.multiparts.put_part(f"{FOLDER}/{'a' * 64}", upload, 1, b"some")
    publish(transport, LARGE)
    assert not [name for name in all_objects(url) if name.startswith("unfinished")]


def test_a_publish_drops_no_upload_of_anybody_else(transport: S3Transport, url: str) -> None:
    output = "a" * 64
    ours = BucketUrl.parse(url)
    theirs = {
        url: (f"{FOLDER}/notes.bin", f"{FOLDER}/backup/{output}", f"{FOLDER}-old/{output}", f"other/{output}", output),
        str(replace(ours, prefix=f"{ours.prefix}-other")): (f"{FOLDER}/{output}",),
        str(replace(ours, prefix=f"{ours.prefix}/{FOLDER}/deep")): (f"{FOLDER}/{output}",),
    }
    buckets = {place: Bucket(BucketUrl.parse(place)) for place in theirs}
    begun = [
        (bucket, name, bucket.multiparts.begin(name)) for place, bucket in buckets.items() for name in theirs[place]
    ]
    begun_by_us = buckets[url].multiparts.begin(f"{FOLDER}/{output}")
    try:
        publish(transport, LARGE)
        for place, bucket in buckets.items():
            left = {upload.name for upload in bucket.multiparts.unfinished()}
            assert left >= set(theirs[place]), "what is not ours is gone"
            assert begun_by_us not in {upload.upload for upload in bucket.multiparts.unfinished()}
    finally:
        for bucket, name, upload in begun:
            bucket.multiparts.abort(name, upload)
        for bucket in buckets.values():
            bucket.close()


def test_left_over_parts_are_found_behind_many_uploads_of_others(
    transport: S3Transport, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Multiparts, "unfinished", partialmethod(Multiparts.unfinished, page_size=2))
    bucket = transport._bucket._mine()
    theirs = [(name, bucket.multiparts.begin(name)) for name in (f"{FOLDER}/0{number}" for number in range(5))]
    mine = bucket.multiparts.begin(f"{FOLDER}/{'a' * 64}")
    try:
        assert mine in {upload.upload for upload in bucket.multiparts.unfinished(FOLDER)}
        transport._bucket.abort_uploads(FOLDER)
        assert sorted(all_objects(url)) == [f"unfinished {name}" for name, _ in theirs]
    finally:
        for name, upload in theirs:
            bucket.multiparts.abort(name, upload)


def test_who_is_overtaken_in_the_middle_of_an_upload_takes_the_entry_that_stands(
    transport: S3Transport, other: S3Transport, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    theirs = {"model.neff": os.urandom(9 << 20)}
    overtaken = threading.Event()
    take = proxy.take

    def take_later(seen: Seen) -> Any:
        if "partNumber" in seen.target and not overtaken.is_set():
            overtaken.set()
            publish(other, theirs)
        return take(seen)

    monkeypatch.setattr(proxy, "take", take_later)
    published = transport.publish(entry_of(DOCUMENT, LARGE), LARGE, None)
    assert not published.created
    assert published.entry.outputs[0].sha256 == hashlib.sha256(theirs["model.neff"]).hexdigest()
    assert not [name for name in all_objects(url) if name.startswith("unfinished")]


def test_an_upload_without_end_is_given_up_and_leaves_nothing(
    opened: Callable[..., S3Transport], url: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = PassedTime()
    transport = opened(proxy.url(BucketUrl.parse(url).prefix), monotonic=lambda: clock.now)
    take = proxy.take

    def slowly(seen: Seen) -> Any:
        clock.now += 400
        return take(seen)

    monkeypatch.setattr(proxy, "take", slowly)
    with pytest.raises(Unreachable, match=r"given up after 600 s"):
        publish(transport, LARGE)
    assert all_objects(url) == ["tmp-create-only"]


def test_what_is_damaged_in_a_bucket_is_kept_for_a_look(transport: S3Transport, files: FilesInBucket) -> None:
    entry = publish(transport)
    name = entry.outputs[0].sha256
    files.write(f"{FOLDER}/{name}", bytes(entry.outputs[0].stored_size))
    assert transport.suspect(KIND, KEY, name) == "quarantined"
    kept = [found for found in files.names() if BAD_PREFIX in found]
    assert sorted(found.rpartition("/")[2] for found in kept) == sorted([name, ENTRY_FILE])
    assert f"{FOLDER}/{name}" not in files.names()
    assert works(transport)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b'{"schema": 1}'], ids=["empty", "torn", "deep", "bare"]
)
def test_an_entry_in_a_bucket_that_nobody_can_read_is_replaced(
    transport: S3Transport, files: FilesInBucket, content: bytes
) -> None:
    files.write(f"{FOLDER}/{ENTRY_FILE}", content)
    assert transport.fetch(KIND, KEY) is None
    assert works(transport)


# The process


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'neff-cache\[s3\]'"):
        open_transport("s3://bucket/prefix", "default", {})


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://key:secret@bucket/a", "s3://bucket?endpoint=ftp://a"])
def test_a_bucket_that_is_misspelt_is_said_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_transport(url, "default", {})
    assert "secret" not in str(caught.value)


def test_settings_of_aws_that_cannot_be_followed_are_a_fault_of_the_cache_only(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(Unreachable, match=r"AWS settings cannot be followed"):
        S3Transport(url, "default").fetch(KIND, KEY)


def test_a_job_that_never_asks_the_bucket_does_not_load_the_sdk() -> None:
    code = """
import sys
from client.transports import open_transport
transport = open_transport("s3://bucket/prefix", "default", {})
transport.close()
assert not {"botocore", "boto3", "urllib3"} & set(sys.modules), "loaded"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_SECONDS)


def test_a_forked_child_has_connections_of_its_own(url: str, opened: Callable[..., S3Transport]) -> None:
    publish(opened(url), LARGE)
    code = """
import os, signal, sys
from client.names import Kind
from client.transports import open_transport

transport = open_transport(sys.argv[1], "default", {})
def hit():
    found = transport.fetch(Kind.GRAPH, sys.argv[2])
    return found is not None

assert hit()
transport._bucket._lock.acquire()  # as another thread of the parent may at this moment
child = os.fork()
if not child:
    signal.alarm(30)
    os._exit(0 if all(hit() for _ in range(5)) else 1)
transport._bucket._lock.release()
assert all(hit() for _ in range(5))
assert os.waitpid(child, 0)[1] == 0
transport.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, url, KEY], check=True, timeout=HANG_SECONDS)
