"""Full disks: 507, nothing half written, reads go on; and uploads that together are too much are not all let in."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_server.services.fsck import Fsck
from cache_server.services.reservation import STEP, Space
from cache_server.stores.base import CHUNK, StoreFullError
from client.names import MAIN_OUTPUT
from tests.cache_server.harness import build, problem, sha256
from tests.fakes.waiting import HANG_SECONDS
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.cache_server.harness import Built, InProcess
    from tests.support.servers import Server

pytestmark = pytest.mark.once

MIB = 1 << 20

# The reservation.


def test_uploads_at_the_same_time_are_promised_no_more_than_there_is() -> None:
    space = Space(lambda: 100, reserve_bytes=10)
    first, second = space.reservation(), space.reservation()
    first.cover(60)
    with pytest.raises(StoreFullError):
        second.cover(31)
    second.cover(30)
    first.release()
    first.release()
    assert space.promised == 30
    second.cover(90)


def test_what_is_written_is_the_file_systems_to_count() -> None:
    free = [100]
    space = Space(lambda: free[0], reserve_bytes=0)
    reservation = space.reservation()
    reservation.cover(80)
    for _ in range(8):
        reservation.will_write(10)
        free[0] -= 10
        reservation.wrote(10)
    assert (free[0], space.promised) == (20, 0)
    with pytest.raises(StoreFullError):
        space.reservation().cover(21)
    space.reservation().cover(20)


def test_a_body_of_unknown_length_gets_room_step_by_step_and_the_last_of_it_exactly() -> None:
    free = [STEP + 100]
    space = Space(lambda: free[0], reserve_bytes=0)
    reservation = space.reservation()
    reservation.will_write(1)
    assert space.promised == STEP
    free[0] -= STEP
    reservation.wrote(STEP)
    reservation.will_write(50)
    assert space.promised == 50
    with pytest.raises(StoreFullError):
        reservation.will_write(101)


def test_a_store_without_a_bound_promises_anything() -> None:
    space = Space(lambda: None, reserve_bytes=1 << 60)
    space.reservation().cover(1 << 50)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["cover", "write", "release"]), st.integers(1, 40))),
    st.integers(0, 20),
)
def test_no_order_of_uploads_overshoots(steps: list[tuple[int, str, int]], reserve: int) -> None:
    free = [100]
    space = Space(lambda: free[0], reserve_bytes=reserve)
    uploads = [space.reservation() for _ in range(4)]
    for who, what, size in steps:
        upload = uploads[who]
        with contextlib.suppress(StoreFullError):
            if what == "cover":
                upload.cover(size)
            elif what == "write":
                upload.will_write(size)
                free[0] -= size
                upload.wrote(size)
            else:
                upload.release()
                uploads[who] = space.reservation()
        assert free[0] >= reserve or free[0] == 100
        assert 0 <= space.promised <= max(free[0] - reserve, 0)


# In the server.


def _leave_free(server: InProcess, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Have the disk seem to have ``size`` bytes left beside the reserve, which what is written takes up."""

    def stored() -> int:
        return sum((server.store_root / name).stat().st_size for name in server.files())

    total = server.service.settings.reserve_bytes + size + stored()
    monkeypatch.setattr(server.service.space, "_free_bytes", lambda: total - stored())


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_that_does_not_fit_is_refused_before_its_body(
    server: InProcess, monkeypatch: pytest.MonkeyPatch, *, chunked: bool
) -> None:
    stored, large = build("stored"), build("large", os.urandom(3 * CHUNK))
    server.publish(stored)
    before = server.files()
    _leave_free(server, monkeypatch, 2 * CHUNK)
    pieces = [large.stored[MAIN_OUTPUT][i : i + CHUNK] for i in range(0, 3 * CHUNK, CHUNK)]

    async def in_chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    content = in_chunks() if chunked else large.stored[MAIN_OUTPUT]
    assert problem(server.call("PUT", large.blob(), content=content)) == (507, "store_full")
    assert server.files() == before
    assert server.service.space.promised == 0
    assert server.call("GET", stored.artifact).content == stored.stored[MAIN_OUTPUT]
    assert server.call("GET", "/readyz").status_code == 200
    if not chunked:
        # not one byte of it was asked for
        status, answer = server.raw("PUT", large.blob(), [], {"content-length": str(3 * CHUNK)})
        assert (status, json.loads(answer)["name"]) == (507, "store_full")


def test_operators_see_the_room_that_is_left(server: InProcess) -> None:
    text = server.call("GET", "/metrics").text
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("neff_cache_"))
    assert float(figures["neff_cache_store_free_bytes"]) > 0
    assert float(figures["neff_cache_promised_bytes"]) == 0


def test_every_end_of_an_upload_gives_its_room_back(server: InProcess) -> None:
    built = build(neff=os.urandom(CHUNK))
    space = server.service.space
    data = built.stored[MAIN_OUTPUT]
    assert server.call("PUT", built.blob(), content=data).status_code == 201
    assert server.call("PUT", built.blob(), content=data).status_code == 200
    assert server.call("PUT", built.blob(), content=data[1:]).status_code == 422
    messages = [{"type": "http.request", "body": data[:99], "more_body": True}, {"type": "http.disconnect"}]
    server.raw("PUT", built.blob(), messages, {"content-length": str(CHUNK)})
    assert space.promised == 0


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program takes the room that was promised: ENOSPC at each call that can meet it."""
    stored = build("stored")
    server.publish(stored)
    before = server.files()
    large = build("large", os.urandom(2 * CHUNK))
    for call in ("write", "fsync", "link", "open"):
        real = getattr(os, call)

        def full(*arguments: Any, _real: Any = real, _call: str = call, **options: Any) -> Any:
            if threading.current_thread().name.startswith("neff-cache"):
                is_upload = _call != "open" or arguments[1] & os.O_CREAT
                if is_upload:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return _real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            assert problem(server.call("PUT", large.blob(), content=large.stored[MAIN_OUTPUT])) == (507, "store_full")
        assert server.files() == before
        assert server.call("GET", stored.artifact).content == stored.stored[MAIN_OUTPUT]
    assert server.publish(large).status_code == 201


# On a real, small disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=48m,nr_inodes=2000", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    if mounted.returncode:
        pytest.skip("a small file system can only be mounted by root")
    try:
        yield folder
    finally:
        subprocess.run(["/bin/umount", "-l", str(folder)], check=True, timeout=HANG_SECONDS)


def _put(server: Server, built: Built, *, entry: bool = False) -> tuple[int, bytes]:
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=HANG_SECONDS)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    try:
        if entry:
            connection.request("PUT", built.path, json.dumps(built.entry.to_json()), headers)
        else:
            # what a server that answers early does to the rest of the body is no concern here
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("PUT", built.blob(), built.stored[MAIN_OUTPUT], headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _get(server: Server, built: Built) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=HANG_SECONDS)
    try:
        connection.request("GET", built.artifact, headers={"Authorization": f"Bearer {server.token}"})
        return connection.getresponse().read()
    finally:
        connection.close()


def test_a_small_disk_is_filled_to_the_reserve_and_never_broken(small_disk: Path) -> None:
    """OPEN-041: 48 MiB of disk, uploads of 4 MiB by 8 clients at once, one of 80 MiB that can never fit."""
    reserve = 8 * MIB
    environment = {"NEFF_CACHE_RESERVE_BYTES": str(reserve)}
    with running_server(small_disk, environment=environment) as server:
        everything = [build(str(number), os.urandom(4 * MIB), log=None) for number in range(16)]
        uploaded: dict[str, int] = {}

        def client(share: list[Built]) -> None:
            for built in share:
                uploaded[built.entry.key] = _put(server, built)[0]

        threads = [threading.Thread(target=client, args=(everything[number::8],)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_SECONDS)
        assert set(uploaded.values()) == {201, 507}
        status = os.statvfs(small_disk)
        assert status.f_bavail * status.f_frsize >= reserve
        large = build("large", bytes(80 * MIB), log=None)
        assert _put(server, large)[0] == 507
        kept = [built for built in everything if uploaded[built.entry.key] == 201]
        assert len(kept) >= 6
        # the reserve is what keeps the entries and the database writable
        for built in kept:
            assert _put(server, built, entry=True)[0] == 201
        for built in kept:
            assert sha256(_get(server, built)) == built.entry.outputs[0].sha256
        assert list((server.data / "store" / ".uploads").iterdir()) == []


@pytest.mark.soak
def test_a_disk_that_others_filled_refuses_writes_and_serves_reads(small_disk: Path) -> None:
    stored, late = build("stored", os.urandom(MIB), log=None), build("late", os.urandom(MIB), log=None)
    with running_server(small_disk, environment={"NEFF_CACHE_RESERVE_BYTES": "0"}) as server:
        assert _put(server, stored)[0] == 201
        assert _put(server, stored, entry=True)[0] == 201
        with pytest.raises(OSError, match="No space"):
            (small_disk / "foreign").write_bytes(bytes(64 * MIB))
        status, body = _put(server, late)
        assert (status, json.loads(body)["name"]) == (507, "store_full")
        assert _get(server, stored) == stored.stored[MAIN_OUTPUT]
        (small_disk / "foreign").unlink()
        assert _put(server, late)[0] == 201
        assert _put(server, late, entry=True)[0] == 201
        assert _get(server, late) == late.stored[MAIN_OUTPUT]


@pytest.mark.soak
def test_a_disk_without_inodes_is_full_whatever_bytes_it_has(small_disk: Path) -> None:
    """OPEN-102: many small files of others."""
    stored, late = build("stored", log=None), build("late", log=None)
    with running_server(small_disk, environment={"NEFF_CACHE_RESERVE_BYTES": "0"}) as server:
        assert _put(server, stored)[0] == 201
        assert _put(server, stored, entry=True)[0] == 201
        with contextlib.suppress(OSError):
            for number in range(3000):
                (small_disk / f"foreign-{number}").touch()
        assert os.statvfs(small_disk).f_favail == 0
        assert _put(server, late)[0] == 507
        assert _get(server, stored) == stored.stored[MAIN_OUTPUT]


def test_a_publish_on_a_full_disk_loses_neither_entry_nor_index(
    server: InProcess, make_server: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build()
    server.upload(built)
    real = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    answer = server.call("PUT", built.path, json=built.entry.to_json())
    assert problem(answer) == (507, "store_full")
    monkeypatch.setattr(os, "fsync", real)
    assert not server.entry_path(built).exists()
    assert Fsck(server.service.store, server.service.database, orphan_seconds=86400).run().findings == []
    assert server.call("PUT", built.path, json=built.entry.to_json()).status_code == 201
