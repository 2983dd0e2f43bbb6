"""The store in a bucket, beyond the contract that all stores share: what only a bucket can do wrong."""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from cache_server.address import Address
from cache_server.stores.base import Blob, StoreError, StoreFullError
from cache_server.stores.s3 import S3Store, open_s3_store
from client.errors import ConfigurationError
from client.layout import ENTRY_FILE, TEMPORARY_PREFIX, meta_path
from client.names import Kind
from client.s3.upload import PART_SIZE
from client.s3.url import BucketUrl
from tests.fakes.waiting import HANG_SECONDS
from tests.support.s3 import SECRET_KEY, all_objects, juicefs, seaweedfs, use_credentials
from tests.support.s3_faults import PassedTime, fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.s3 import S3Server
    from tests.support.s3_faults import FaultProxy

ADDRESS = Address("default", Kind.GRAPH, "ab" * 32)
BLOB = Blob(ADDRESS, "cd" * 32)
PATH = f"{ADDRESS.path}/{BLOB.file_name}"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch)


@pytest.fixture
def server() -> S3Server:
    return seaweedfs()


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server) as running:
        yield running


@pytest.fixture
def open_store() -> Iterator[Callable[..., S3Store]]:
    """Return a function that makes the store at a URL; closed at the end, before the server."""
    with ExitStack() as stack:

        def made(url: str, **options: Any) -> S3Store:
            store = open_s3_store(url, policy=PassedTime().policy(), **options)
            stack.callback(store.close)
            return store

        yield made


@pytest.fixture
def prefix(server: S3Server) -> str:
    return BucketUrl.parse(server.new_url()).prefix


@pytest.fixture
def store(proxy: FaultProxy, prefix: str, open_store: Callable[..., S3Store]) -> S3Store:
    return open_store(proxy.url(prefix))


def _put(store: S3Store, blob: Blob, data: bytes) -> bool:
    upload = store.begin_upload(blob)
    upload.write(data)
    return upload.commit(blob)


def test_a_store_without_create_only_writes_is_refused_at_the_start(open_store: Callable[..., S3Store]) -> None:
    url = juicefs().new_url()
    with pytest.raises(StoreError, match=r"ignored If-None-Match .* use a store that honours") as caught:
        open_store(url).open()
    assert SECRET_KEY not in str(caught.value)
    assert all_objects(url) == []


def test_opening_a_store_leaves_nothing_in_it(store: S3Store, server: S3Server, prefix: str) -> None:
    store.open()
    assert all_objects(server.url(prefix)) == []


def test_a_right_that_only_the_sweep_needs_is_asked_for_at_the_start(store: S3Store, proxy: FaultProxy) -> None:
    proxy.break_next("GET", r"\?uploads", status=403, code="AccessDenied")
    with pytest.raises(StoreError, match="s3:ListBucketMultipartUploads"):
        store.open()


def test_the_place_is_shown_without_secrets(open_store: Callable[..., S3Store]) -> None:
    url = "s3://bucket/prefix?endpoint=https://store.example:9000&region=eu-central-1"
    assert open_store(url).location == url
    with pytest.raises(ConfigurationError) as caught:
        open_s3_store("s3://key:hunter2@bucket/prefix")
    assert "hunter2" not in str(caught.value)


def test_objects_lie_where_the_layout_says(store: S3Store, server: S3Server, prefix: str) -> None:
    _put(store, BLOB, b"x")
    _put(store, BLOB._replace(encoding="zstd"), b"y")
    store.create_entry(ADDRESS, b"{}")
    folder = f"default/graph/ab/{'ab' * 32}"
    assert all_objects(server.url(prefix)) == [
        f"{folder}/{'cd' * 32}",
        f"{folder}/{'cd' * 32}.zst",
        f"{folder}/{ENTRY_FILE}",
    ]


def test_of_sixteen_servers_that_publish_one_key_exactly_one_wins(
    server: S3Server, prefix: str, open_store: Callable[..., S3Store]
) -> None:
    stores = [open_store(server.url(prefix)) for _ in range(4)]
    won: list[bytes] = []
    barrier = threading.Barrier(16)

    def write(data: bytes) -> None:
        barrier.wait(HANG_SECONDS)
        if stores[data[0] % 4].create_entry(ADDRESS, data):
            won.append(data)

    threads = [threading.Thread(target=write, args=(bytes([number]) * 1000,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert won == [stores[0].read_entry(ADDRESS)]


def test_an_entry_whose_answer_was_lost_is_ours(store: S3Store, proxy: FaultProxy) -> None:
    proxy.break_next("PUT", ENTRY_FILE, applied=True)
    assert store.create_entry(ADDRESS, b"mine") is True
    proxy.break_next("PUT", ENTRY_FILE, applied=True)
    assert store.create_entry(ADDRESS, b"more") is False
    assert store.read_entry(ADDRESS) == b"mine"


@pytest.mark.parametrize("size", [1000, 2 * PART_SIZE + 1])
def test_an_upload_that_stops_in_the_middle_leaves_nothing(
    store: S3Store, server: S3Server, prefix: str, size: int
) -> None:
    upload = store.begin_upload(BLOB)
    upload.write(bytes(size))
    upload.abort()
    assert all_objects(server.url(prefix)) == []
    assert store.stored_size(BLOB) is None


def test_an_upload_becomes_nothing_but_what_it_was_begun_for(store: S3Store, server: S3Server, prefix: str) -> None:
    upload = store.begin_upload(BLOB)
    upload.write(bytes(PART_SIZE + 1))
    with pytest.raises(ValueError, match="cannot become"):
        upload.commit(BLOB._replace(encoding="zstd"))
    assert all_objects(server.url(prefix)) == []


def test_an_upload_whose_server_died_is_swept(
    store: S3Store, server: S3Server, prefix: str, open_store: Callable[..., S3Store]
) -> None:
    dead = store.begin_upload(BLOB)
    dead.write(bytes(PART_SIZE + 1))
    assert _put(store, BLOB, b"whole")
    another = open_store(server.url(prefix))
    assert another.sweep_uploads(time.time() - 3600) == 0
    assert another.sweep_uploads(time.time() + 3600) == 1
    assert all_objects(server.url(prefix)) == [PATH]
    with pytest.raises(StoreError):
        dead.commit(BLOB)


def test_what_others_keep_in_the_bucket_is_not_swept(
    store: S3Store, server: S3Server, prefix: str, open_store: Callable[..., S3Store]
) -> None:
    aside = f"quarantine/default/graph/{'ab' * 32}/20200101T000000Z"
    deep = (
        "quarantine/photos/2019/summer/beach/a.jpg",
        f"{aside}/a.jpg",
        f"{aside[:-1]}/{'0' * 64}".replace("graph", "x"),
    )
    theirs = ("backup.tar", "default/graph/model.bin", "tmp-notes", "quarantine/readme", *deep)
    uploads = {name: store._bucket.multiparts.begin(name) for name in theirs[:3]}
    for name in theirs:
        store._bucket.create(name, b"x")
    # a neighbour whose prefix begins like ours has a cache of its own there
    neighbour = open_store(server.url(f"{prefix}-other"))
    running = neighbour._bucket.multiparts.begin(PATH)
    neighbour._bucket.create(f"{TEMPORARY_PREFIX}{'0' * 32}", b"1")
    assert _put(neighbour, BLOB, b"theirs")
    later = time.time() + 3600
    assert (store.sweep_uploads(later), store.sweep_quarantine(later)) == (0, 0)
    kept = all_objects(server.url(prefix))
    assert sorted(kept) == sorted([*theirs, *(f"unfinished {name}" for name in uploads)])
    assert len(all_objects(server.url(f"{prefix}-other"))) == 3
    neighbour._bucket.multiparts.abort(PATH, running)
    for name, upload in uploads.items():
        store._bucket.multiparts.abort(name, upload)


def test_what_a_killed_probe_left_is_swept(store: S3Store, server: S3Server, prefix: str) -> None:
    store._bucket.create(f"{TEMPORARY_PREFIX}{'0' * 32}", b"1")
    assert list(store.addresses()) == []
    store.sweep_uploads(time.time() - 3600)
    assert len(all_objects(server.url(prefix))) == 1
    store.sweep_uploads(time.time() + 3600)
    assert all_objects(server.url(prefix)) == []


def test_policy_quarantine_and_strangers_are_no_entries(store: S3Store) -> None:
    _put(store, BLOB, b"x")
    store.create_entry(ADDRESS, b"entry")
    store.set_aside(ADDRESS, [ENTRY_FILE, BLOB.file_name], "20261130T000000Z")
    for name in (
        meta_path("projects", "default", 1),
        "default/graph/ab/short/entry.json",
        f"default/graph/00/{'ab' * 32}/entry.json",
        f"default/other/ab/{'ab' * 32}/entry.json",
        f"UPPER/graph/ab/{'ab' * 32}/entry.json",
        "README",
    ):
        store._bucket.create(name, b"x")
    assert list(store.addresses()) == [ADDRESS]
    assert {file.name for file in store.files(ADDRESS)} == {ENTRY_FILE, BLOB.file_name}


def test_old_quarantine_goes_and_young_stays(store: S3Store, server: S3Server, prefix: str) -> None:
    store.create_entry(ADDRESS, b"entry")
    store.set_aside(ADDRESS, [ENTRY_FILE], "20261101T000000Z")
    store.set_aside(ADDRESS, [ENTRY_FILE, "absent"], "20261130T000000Z")
    assert store.sweep_quarantine(time.time() - 60) == 0
    assert store.sweep_quarantine(time.time() + 60) == 2
    assert all_objects(server.url(prefix)) == [f"{ADDRESS.path}/{ENTRY_FILE}"]


def test_a_full_store_is_told_from_a_broken_one(store: S3Store, proxy: FaultProxy) -> None:
    proxy.break_next("PUT", status=507)
    with pytest.raises(StoreFullError):
        store.create_entry(ADDRESS, b"x")
    proxy.break_next("PUT", status=403, code="AccessDenied")
    with pytest.raises(StoreError) as caught:
        _put(store, BLOB, b"x")
    assert not isinstance(caught.value, StoreFullError)


CALLS: dict[str, Callable[[S3Store], Any]] = {
    "check": lambda store: store.check(),
    "read_entry": lambda store: store.read_entry(ADDRESS),
    "create_entry": lambda store: store.create_entry(ADDRESS, b"x"),
    "stored_size": lambda store: store.stored_size(BLOB),
    "open_output": lambda store: store.open_output(BLOB),
    "upload": lambda store: _put(store, BLOB, b"x"),
    "large upload": lambda store: _put(store, BLOB, bytes(PART_SIZE + 1)),
    "files": lambda store: store.files(ADDRESS),
    "remove": lambda store: store.remove(ADDRESS, ENTRY_FILE),
    "set_aside": lambda store: store.set_aside(ADDRESS, [ENTRY_FILE], "20261130T000000Z"),
    "addresses": lambda store: list(store.addresses()),
    "sweep_uploads": lambda store: store.sweep_uploads(0),
    "sweep_quarantine": lambda store: store.sweep_quarantine(0),
}


@pytest.mark.parametrize("status", [0, 403, 429, 503])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.share(8)
def test_no_answer_is_ever_taken_for_an_absent_object(
    store: S3Store, proxy: FaultProxy, call: str, status: int
) -> None:
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        proxy.break_next(method, times=10_000, status=status)
    with pytest.raises(StoreError) as caught:
        CALLS[call](store)
    assert len(str(caught.value).splitlines()) == 1
    assert SECRET_KEY not in str(caught.value)


def test_a_body_that_breaks_off_again_and_again_is_an_error(store: S3Store, proxy: FaultProxy) -> None:
    _put(store, BLOB, os.urandom(1 << 20))
    proxy.break_next("GET", times=99, cut_after=1000)
    opened = store.open_output(BLOB)
    assert opened is not None
    with pytest.raises(StoreError):
        list(opened.chunks())
    opened.close()


def test_an_output_can_be_fetched_straight_from_the_bucket(store: S3Store) -> None:
    _put(store, BLOB, b"bytes")
    with urllib.request.urlopen(store.presign(BLOB, 30), timeout=HANG_SECONDS) as answer:
        assert answer.read() == b"bytes"


def test_closing_ends_every_thread(server: S3Server, prefix: str) -> None:
    before = set(threading.enumerate())
    store = open_s3_store(server.url(prefix))
    _put(store, BLOB, bytes(2 * PART_SIZE))
    store.close()
    assert set(threading.enumerate()) - before == set()
