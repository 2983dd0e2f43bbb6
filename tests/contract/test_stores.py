"""What every object store must do: the contract in `cache_server.stores.base`, run against each kind of store."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from cache_server.address import Address
from cache_server.metrics import Metrics
from cache_server.stores.base import CHUNK, Blob, MetaName, Store
from cache_server.stores.local import LocalStore
from cache_server.stores.measured import MeasuredStore
from cache_server.stores.s3 import S3Store, open_s3_store
from client.layout import ENTRY_FILE
from client.names import Kind
from client.s3.upload import PART_SIZE
from tests.fakes.waiting import HANG_SECONDS
from tests.support import s3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ADDRESS = Address("default", Kind.GRAPH, "ab" * 32)
OTHER = Address("default", Kind.EAGER, "ab" * 32)
BLOB = Blob(ADDRESS, "cd" * 32)
PACKED = Blob(ADDRESS, "cd" * 32, "zstd")


def _local(folder: Path) -> Store:
    return LocalStore(folder / "store")


def _measured(folder: Path) -> Store:
    return MeasuredStore(LocalStore(folder / "store"), Metrics())


def _s3(folder: Path) -> Store:
    return open_s3_store(s3.seaweedfs().url(folder.name))


STORES: dict[str, Callable[[Path], Store]] = {"local": _local, "measured": _measured, "s3": _s3}


@pytest.fixture(params=sorted(STORES))
def reopen(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Store]]:
    """Open the store once more, as another process would."""
    s3.use_credentials(monkeypatch)
    opened: list[Store] = []

    def again() -> Store:
        store = STORES[request.param](tmp_path)
        opened.append(store)
        store.open()
        return store

    yield again
    for store in opened:
        if isinstance(store, S3Store):
            store.close()


@pytest.fixture
def store(reopen: Callable[[], Store]) -> Store:
    return reopen()


def _put(store: Store, blob: Blob, data: bytes) -> bool:
    upload = store.begin_upload(blob)
    upload.write(data)
    return upload.commit(blob)


def _get(store: Store, blob: Blob, start: int = 0, stop: int | None = None) -> bytes | None:
    opened = store.open_output(blob)
    if opened is None:
        return None
    try:
        return b"".join(opened.chunks(start, stop))
    finally:
        opened.close()


def test_an_output_comes_back_as_it_went_in(store: Store, reopen: Callable[[], Store]) -> None:
    for size in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7):
        blob, data = Blob(ADDRESS, f"{size:064x}"), os.urandom(size)
        assert _put(store, blob, data)
        for each in (store, reopen()):
            assert each.stored_size(blob) == size
            assert _get(each, blob) == data


def test_pieces_are_bounded_and_any_part_can_be_read(store: Store) -> None:
    data = os.urandom(2 * CHUNK + 100)
    _put(store, BLOB, data)
    opened = store.open_output(BLOB)
    assert opened is not None
    assert opened.stored_size == len(data)
    assert max(len(piece) for piece in opened.chunks()) <= CHUNK
    for start, stop in ((0, 1), (CHUNK - 1, CHUNK + 1), (5, 5), (len(data) - 1, None), (0, len(data))):
        assert b"".join(opened.chunks(start, stop)) == data[start:stop]
    opened.close()
    opened.close()


def test_the_beginning_of_an_output_can_be_read_alone(store: Store) -> None:
    assert store.first_bytes(BLOB, 18) is None
    _put(store, BLOB, b"0123456789")
    assert store.first_bytes(BLOB, 4) == b"0123"
    assert store.first_bytes(BLOB, 10) == b"0123456789"
    assert store.first_bytes(BLOB, 18) == b"0123456789"


def test_an_output_that_is_read_afresh_is_the_same(store: Store) -> None:
    assert store.open_output(BLOB, fresh=True) is None
    _put(store, BLOB, b"0123456789")
    opened = store.open_output(BLOB, fresh=True)
    assert opened is not None
    with contextlib.closing(opened):
        assert b"".join(opened.chunks()) == b"0123456789"


def test_what_is_written_in_pieces_is_one_output(store: Store) -> None:
    upload = store.begin_upload(BLOB)
    for piece in (b"a", bytearray(b"b" * CHUNK), memoryview(b"xcx")[1:2], b""):
        upload.write(piece)
    assert upload.commit(BLOB)
    assert _get(store, BLOB) == b"a" + b"b" * CHUNK + b"c"


def test_an_output_never_replaces_another(store: Store) -> None:
    assert _put(store, BLOB, b"first") is True
    assert _put(store, BLOB, b"second") is False
    assert _get(store, BLOB) == b"first"
    assert [file.name for file in store.files(ADDRESS)] == [BLOB.file_name]


def test_plain_and_packed_forms_of_an_output_lie_side_by_side(store: Store) -> None:
    _put(store, BLOB, b"plain")
    _put(store, PACKED, b"packed")
    assert (_get(store, BLOB), _get(store, PACKED)) == (b"plain", b"packed")


def test_an_entry_never_replaces_another(store: Store, reopen: Callable[[], Store]) -> None:
    assert store.read_entry(ADDRESS) is None
    assert store.create_entry(ADDRESS, b"first") is True
    assert store.create_entry(ADDRESS, b"second") is False
    assert reopen().read_entry(ADDRESS) == b"first"


def test_of_many_writers_at_once_exactly_one_succeeds(store: Store) -> None:
    won: list[bytes] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        data = b"%d" % number
        barrier.wait(HANG_SECONDS)
        if store.create_entry(ADDRESS, data):
            won.append(data)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert won == [store.read_entry(ADDRESS)]


def test_namespaces_never_mix(store: Store) -> None:
    _put(store, BLOB, b"x")
    store.create_entry(ADDRESS, b"entry")
    for other in (OTHER, ADDRESS._replace(project="other"), ADDRESS._replace(key="0" * 64)):
        assert store.stored_size(BLOB._replace(address=other)) is None
        assert store.open_output(BLOB._replace(address=other)) is None
        assert store.read_entry(other) is None
        assert store.files(other) == []


def test_absent_things_are_no_errors(store: Store) -> None:
    assert store.stored_size(BLOB) is None
    assert store.open_output(BLOB) is None
    assert store.files(ADDRESS) == []
    assert list(store.addresses()) == []
    store.remove(ADDRESS, BLOB.file_name)
    store.set_aside(ADDRESS, [BLOB.file_name], "20261130T000000Z")
    assert store.sweep_uploads(time.time()) == 0


def test_an_aborted_upload_leaves_nothing(store: Store) -> None:
    upload = store.begin_upload(BLOB)
    upload.write(b"half")
    upload.abort()
    upload.abort()
    assert store.files(ADDRESS) == []
    assert list(store.addresses()) == []
    assert store.sweep_uploads(time.time() + 10) == 0


def test_abort_after_commit_takes_nothing_away(store: Store) -> None:
    upload = store.begin_upload(BLOB)
    upload.write(b"whole")
    assert upload.commit(BLOB)
    upload.abort()
    assert _get(store, BLOB) == b"whole"


def test_abandoned_uploads_are_swept_by_age(store: Store, reopen: Callable[[], Store]) -> None:
    upload = store.begin_upload(BLOB)
    # more than a part: a bucket is told of an upload only then
    upload.write(bytes(PART_SIZE + 1))
    again = reopen()
    assert again.sweep_uploads(time.time() - 3600) == 0
    assert again.sweep_uploads(time.time() + 3600) == 1
    assert again.files(ADDRESS) == []
    upload.abort()


def test_a_reader_keeps_what_it_has_opened(store: Store) -> None:
    data = os.urandom(2 * CHUNK)
    _put(store, BLOB, data)
    opened = store.open_output(BLOB)
    assert opened is not None
    pieces = opened.chunks()
    first = next(pieces)
    store.remove(ADDRESS, BLOB.file_name)
    assert store.stored_size(BLOB) is None
    assert first + b"".join(pieces) == data
    opened.close()


def test_files_are_listed_with_size_and_age(store: Store) -> None:
    begin = time.time()
    _put(store, BLOB, b"12345")
    store.create_entry(ADDRESS, b"entry")
    found = {file.name: file for file in store.files(ADDRESS)}
    assert set(found) == {BLOB.file_name, ENTRY_FILE}
    assert found[BLOB.file_name].size == 5
    assert all(begin - 5 < file.modified < time.time() + 5 for file in found.values())


def test_removing_the_last_file_removes_the_key(store: Store) -> None:
    _put(store, BLOB, b"x")
    store.create_entry(ADDRESS, b"entry")
    _put(store, BLOB._replace(address=OTHER), b"x")
    assert sorted(store.addresses()) == sorted([ADDRESS, OTHER])
    store.remove(ADDRESS, ENTRY_FILE)
    store.remove(ADDRESS, BLOB.file_name)
    assert list(store.addresses()) == [OTHER]
    assert _put(store, BLOB, b"again")


def test_what_is_set_aside_can_be_removed_and_is_kept_for_a_while(store: Store) -> None:
    _put(store, BLOB, b"damaged")
    store.create_entry(ADDRESS, b"entry")
    store.set_aside(ADDRESS, [ENTRY_FILE, BLOB.file_name, "absent"], "20261130T000000Z")
    assert store.read_entry(ADDRESS) == b"entry"
    for file in store.files(ADDRESS):
        store.remove(ADDRESS, file.name)
    # what is set aside is no entry
    assert list(store.addresses()) == []
    assert store.sweep_quarantine(time.time() - 3600) == 0
    assert store.sweep_quarantine(time.time() + 3600) == 1
    assert store.sweep_quarantine(time.time() + 3600) == 0


def test_uploads_and_removals_of_one_key_do_not_trip_over_each_other(store: Store) -> None:
    """A removal takes the key's folder away at any moment; an upload must find or make it again."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def remove() -> None:
        try:
            while not stop.is_set():
                store.remove(ADDRESS, BLOB.file_name)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(50):
            _put(store, BLOB, b"x")
    finally:
        stop.set()
        remover.join(HANG_SECONDS)
    assert failures == []


def test_a_healthy_store_says_so_and_where_it_is(store: Store) -> None:
    store.check()
    assert store.location


def test_a_walk_names_every_file_once_and_keeps_folders_together(store: Store) -> None:
    _put(store, BLOB, b"12345")
    _put(store, Blob(OTHER, "ef" * 32), b"1")
    store.create_entry(ADDRESS, b"entry")
    store.create_meta(MetaName("pins", "a", 1), b"{}")
    store.set_aside(ADDRESS, [ENTRY_FILE], "20261130T000000Z")
    unfinished = store.begin_upload(PACKED)
    unfinished.write(b"half")
    found = list(store.walk())
    unfinished.abort()
    assert {file.name: file.size for file in found} == {
        f"{ADDRESS.path}/{BLOB.file_name}": 5,
        f"{ADDRESS.path}/{ENTRY_FILE}": 5,
        f"{OTHER.path}/{'ef' * 32}": 1,
        MetaName("pins", "a", 1).path: 2,
        f"quarantine/default/graph/{ADDRESS.key}/20261130T000000Z/{ENTRY_FILE}": 5,
    }
    folders = [file.name.rpartition("/")[0] for file in found]
    assert len(list(itertools.groupby(folders))) == len(set(folders)) == 4
    assert all(abs(file.modified - time.time()) < 3600 for file in found)


def test_uploads_that_did_not_end_are_named_and_swept(store: Store) -> None:
    upload = store.begin_upload(BLOB)
    upload.write(os.urandom(PART_SIZE + CHUNK))
    deadline = time.monotonic() + HANG_SECONDS
    while not (found := list(store.unfinished())):
        # the first part of a multipart upload is on its way
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(found) == 1
    assert all(file.modified < time.time() + 3600 for file in found)
    assert store.sweep_uploads(time.time() + 3600) == 1
    assert list(store.unfinished()) == []
    upload.abort()


def test_a_store_knows_its_room_or_says_that_it_has_no_bound(store: Store) -> None:
    free = store.free_bytes()
    assert free is None or 0 < free < 1 << 60
    assert (free is None) == store.location.startswith("s3://")


def test_a_revision_of_policy_is_written_once_and_found_again(store: Store, reopen: Callable[[], Store]) -> None:
    first, second = MetaName("pins", "default.plan.serve", 1), MetaName("pins", "default.plan.serve", 2)
    other, table = MetaName("pins", "default.plan", 1), MetaName("quotas", "server", 10**11)
    assert list(store.meta()) == []
    assert store.read_meta(first) is None
    assert [store.create_meta(name, name.path.encode()) for name in (first, second, other, table)] == [True] * 4
    assert store.create_meta(first, b"another") is False
    for each in (store, reopen()):
        assert each.read_meta(first) == first.path.encode()
        assert sorted(each.meta()) == sorted([first, second, other, table])
        assert sorted(each.meta("pins")) == sorted([first, second, other])
        assert sorted(each.meta("pins", "default.plan.serve")) == [first, second]
        assert list(each.meta("rules")) == []
        assert list(each.addresses()) == []


def test_a_name_that_would_leave_the_folder_of_policy_is_refused(store: Store) -> None:
    for table, row in (("..", "a"), ("pins", ".."), ("pins", "a/b"), ("", "a"), ("pins", "")):
        with pytest.raises(ValueError, match="cannot stand in a path"):
            store.create_meta(MetaName(table, row, 1), b"{}")
