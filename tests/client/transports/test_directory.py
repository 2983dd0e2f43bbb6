"""A shared folder as file systems really are: without links, without create-only, full, stale, read-only, shared."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.errors import Denied, Failure, Refused, Unreachable
from client.layout import ENTRY_FILE, TEMPORARY_PREFIX, entry_folder, lease_file, output_file
from client.names import Kind
from client.transports import open_transport, shared_files
from client.transports.base import Damaged
from client.transports.direct_lease import TTL_SECONDS
from client.transports.directory import DirectoryTransport
from client.wire import Entry, Failed, Granted, Holder, NotGranted, Ready, Wait
from tests.client.programs import build, document, entry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOLDER = Holder("node", 1)
OTHER = Holder("other-node", 2)
DOCUMENT = document()
KIND, KEY = DOCUMENT.kind, DOCUMENT.key
OUTPUTS = {"model.neff": build(), "compile.log": b"all is well\n" * 100}
ENTRY = entry_of(DOCUMENT, OUTPUTS)


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transport(root: Path, clock: Clock) -> DirectoryTransport:
    return DirectoryTransport(root, "default", monotonic=clock, sleep=clock.sleep)


def folder_of(root: Path, key: str = KEY) -> Path:
    return root / entry_folder("default", KIND, key)


def publish(transport: DirectoryTransport, outputs: Mapping[str, bytes] = OUTPUTS) -> Entry:
    return transport.publish(entry_of(DOCUMENT, outputs), outputs, None).entry


def granted(transport: DirectoryTransport, holder: Holder = HOLDER) -> Granted:
    answer = transport.acquire(KIND, KEY, holder)
    assert isinstance(answer, Granted)
    return answer


def works(transport: DirectoryTransport) -> bool:
    """Take a lease, publish, hit."""
    lease = granted(transport)
    transport.renew(KIND, KEY, lease)
    assert transport.publish(ENTRY, OUTPUTS, lease).created
    found = transport.fetch(KIND, KEY)
    return found is not None and found.neff == OUTPUTS["model.neff"]


def failing(function: Any, number: int, *, after: int = 0, times: int = 1 << 30, when: Any = lambda *_: True) -> Any:
    """Return ``function`` with calls that fail with an errno: ``times`` of them, after the first ``after``."""
    calls = 0

    def wrapper(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if when(*arguments):
            calls += 1
            if after < calls <= after + times:
                raise OSError(number, os.strerror(number))
        return function(*arguments, **options)

    return wrapper


def writes(_path: object, flags: int, *_: object) -> bool:
    return bool(flags & os.O_CREAT)


# What file systems lack


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV])
def test_a_file_system_without_hard_links_still_shares(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", failing(os.link, number))
    assert works(transport)


def test_a_file_system_that_runs_out_of_links_still_shares(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(os.link, errno.EMLINK, after=3))
    assert works(transport)


def test_without_hard_links_the_first_writer_still_wins(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(os.link, errno.EPERM))
    builds = [{"model.neff": build(), "compile.log": os.urandom(300)} for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(lambda each: publish(DirectoryTransport(root, "default"), each), builds))
    assert len({entry.outputs for entry in entries}) == 1
    found = DirectoryTransport(root, "default").fetch(KIND, KEY)
    assert found is not None
    assert found.neff in [each["model.neff"] for each in builds]


def test_a_writer_killed_between_claim_and_content_blocks_nobody(transport: DirectoryTransport, root: Path) -> None:
    folder_of(root).mkdir(parents=True)
    output = ENTRY.outputs[0]
    for name in (ENTRY_FILE, output_file(output.sha256, "identity"), lease_file(1)):
        (folder_of(root) / name).touch()
    long_ago = time.time() - 1000
    os.utime(folder_of(root) / lease_file(1), (long_ago, long_ago))
    assert transport.fetch(KIND, KEY) is None
    assert works(transport)


def test_without_create_only_there_is_no_lease_and_no_entry(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a FUSE mount of a bucket that ignores O_EXCL and knows no links."""
    real_open = os.open

    def careless(path: Any, flags: int, *arguments: Any) -> int:
        return real_open(path, flags & ~os.O_EXCL, *arguments)

    monkeypatch.setattr(os, "link", failing(os.link, errno.ENOSYS))
    monkeypatch.setattr(os, "open", careless)
    for call in (lambda: transport.acquire(KIND, KEY, HOLDER), lambda: publish(transport)):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.name == shared_files.NO_CREATE_ONLY
    assert transport.fetch(KIND, KEY) is None


def test_a_link_whose_answer_was_lost_counts(transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS sends the call again, and the second one finds the name taken by the first."""
    real_link = os.link

    def twice(*arguments: Any, **options: Any) -> None:
        real_link(*arguments, **options)
        raise FileExistsError(errno.EEXIST, "File exists")

    granted(transport)  # the folder is known by now
    monkeypatch.setattr(os, "link", twice)
    assert transport.publish(ENTRY, OUTPUTS, None).created


def test_a_stale_handle_is_opened_once_more(transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(transport)
    monkeypatch.setattr(os, "open", failing(os.open, errno.ESTALE, times=1))
    assert transport.fetch(KIND, KEY) is not None


def test_a_handle_that_stays_stale_is_unreachable(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(transport)
    monkeypatch.setattr(os, "open", failing(os.open, errno.ESTALE))
    with pytest.raises(Unreachable, match=r"Stale file handle"):
        transport.fetch(KIND, KEY)


def test_a_published_entry_that_is_not_visible_yet_is_a_miss(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(transport)
    monkeypatch.setattr(os, "open", failing(os.open, errno.ENOENT))
    assert transport.fetch(KIND, KEY) is None


def test_a_finished_publish_is_no_failure_whatever_becomes_of_the_rest(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = granted(transport)
    monkeypatch.setattr(Path, "unlink", failing(Path.unlink, errno.EBUSY))
    assert transport.publish(ENTRY, OUTPUTS, lease).created


def test_folders_that_cannot_be_synced_are_no_obstacle(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_folder(descriptor: int) -> bool:
        return os.path.isdir(f"/proc/self/fd/{descriptor}")  # noqa: PTH112 - a descriptor, not a path of ours

    monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.EINVAL, when=of_folder))
    assert works(transport)


def test_a_full_disk_is_said_and_leaves_nothing_behind(
    transport: DirectoryTransport, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted(transport)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(os.fsync, errno.ENOSPC))
        with pytest.raises(Refused) as caught:
            publish(transport)
    assert (caught.value.status, caught.value.name) == (507, "store_full")
    assert [path.name for path in folder_of(root).iterdir()] == [lease_file(1)]
    assert publish(transport).key == KEY


def test_an_error_while_reading_is_never_taken_for_damage(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = publish(transport)
    monkeypatch.setattr("client.encoding.read_exactly", failing(None, errno.EIO))
    with pytest.raises(Unreachable):
        transport.suspect(KIND, KEY, entry.outputs[0].sha256)
    monkeypatch.undo()
    assert transport.fetch(KIND, KEY) is not None


# Rights


def test_a_folder_that_may_only_be_read_serves_hits_and_grants_nothing(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(transport)
    monkeypatch.setattr(os, "open", failing(os.open, errno.EROFS, when=writes))
    monkeypatch.setattr(Path, "mkdir", failing(Path.mkdir, errno.EROFS))
    reader = DirectoryTransport(transport._root, "default")
    assert reader.fetch(KIND, KEY) is not None
    assert isinstance(reader.acquire(KIND, KEY, HOLDER), Ready)
    other = document("another")
    assert isinstance(reader.acquire(KIND, other.key, HOLDER), NotGranted)
    with pytest.raises(Denied):
        reader.publish(entry_of(other, OUTPUTS), OUTPUTS, None)


def test_who_may_only_read_waits_for_a_living_holder_and_not_for_a_dead_one(
    transport: DirectoryTransport, clock: Clock
) -> None:
    lease = granted(transport)
    assert isinstance(transport.acquire(KIND, KEY, OTHER, may_publish=False), Wait)
    clock.now += TTL_SECONDS * 0.6
    transport.renew(KIND, KEY, lease)
    assert isinstance(transport.acquire(KIND, KEY, OTHER, may_publish=False), Wait)
    clock.now += TTL_SECONDS * 0.6
    assert isinstance(transport.acquire(KIND, KEY, OTHER, may_publish=False), Wait)
    clock.now += TTL_SECONDS * 0.6
    assert isinstance(transport.acquire(KIND, KEY, OTHER, may_publish=False), NotGranted)


def test_an_entry_only_its_writer_can_read_is_said_not_missed(
    transport: DirectoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(transport)
    monkeypatch.setattr(os, "open", failing(os.open, errno.EACCES))
    with pytest.raises(Refused) as caught:
        transport.fetch(KIND, KEY)
    assert caught.value.name == "permission"


@pytest.mark.parametrize(("mode", "files"), [(0o2775, 0o644), (0o755, 0o644), (0o750, 0o640), (0o700, 0o600)])
def test_what_one_user_writes_is_as_open_to_others_as_the_folder(root: Path, mode: int, files: int) -> None:
    root.mkdir()
    root.chmod(mode)
    old = os.umask(0o077)
    try:
        transport = DirectoryTransport(root, "default")
        lease = granted(transport)
        transport.publish(ENTRY, OUTPUTS, lease)
    finally:
        os.umask(old)
    for path in root.rglob("*"):
        assert path.stat().st_mode & 0o7777 == (mode if path.is_dir() else files), path


# The lease


def test_waiters_poll_between_half_a_second_and_five_seconds(root: Path, clock: Clock) -> None:
    granted(DirectoryTransport(root, "default"))
    jitter = random.Random(1)  # noqa: S311 - repeatable, not secret
    waiter = DirectoryTransport(root, "default", monotonic=clock, sleep=clock.sleep, uniform=jitter.uniform)
    assert isinstance(waiter.acquire(KIND, KEY, OTHER, wait_seconds=25), Wait)
    assert sum(clock.slept) == pytest.approx(25)
    assert all(0.5 <= seconds <= 5 for seconds in clock.slept[:-1])
    assert len(set(clock.slept)) > 3


def test_a_lease_stamped_in_the_future_does_not_live_for_ever(
    transport: DirectoryTransport, root: Path, clock: Clock
) -> None:
    """The store's clock was set back by a day, and the holder is dead."""
    granted(transport)
    tomorrow = time.time() + 24 * 3600
    os.utime(folder_of(root) / lease_file(1), (tomorrow, tomorrow))
    assert isinstance(transport.acquire(KIND, KEY, OTHER), Wait)
    clock.now += TTL_SECONDS + 1
    assert granted(transport, OTHER).generation == 2


def test_fifty_dead_generations_cost_no_time(transport: DirectoryTransport, root: Path, clock: Clock) -> None:
    granted(transport)
    raw = (folder_of(root) / lease_file(1)).read_bytes()
    long_ago = time.time() - 1000
    for generation in range(1, 51):
        path = folder_of(root) / lease_file(generation)
        path.write_bytes(raw)
        os.utime(path, (long_ago, long_ago))
    lease = granted(transport)
    assert (lease.generation, clock.slept) == (51, [])
    transport.publish(ENTRY, OUTPUTS, lease)
    assert [path.name for path in folder_of(root).glob("lease-*")] == [lease_file(51)]


@pytest.mark.parametrize("raw", [b"", b"no json", b"[]", b'{"schema": 2, "state": "held"}', b'{"schema": 1}'])
def test_a_lease_that_nobody_can_read_runs_out_like_any_other(
    transport: DirectoryTransport, root: Path, raw: bytes
) -> None:
    granted(transport)
    path = folder_of(root) / lease_file(1)
    path.write_bytes(raw)
    assert isinstance(transport.acquire(KIND, KEY, OTHER), Wait)
    long_ago = time.time() - 1000
    os.utime(path, (long_ago, long_ago))
    assert granted(transport, OTHER).generation == 2


def test_a_waiter_that_sees_the_holder_fail_is_told_why(
    transport: DirectoryTransport, root: Path, clock: Clock
) -> None:
    holder = DirectoryTransport(root, "default")
    lease = granted(holder)
    failure = Failure("diagnosis", "NCC_EVRF001: no", "log")
    clock.meanwhile = lambda: holder.release(KIND, KEY, lease, failure)
    answer = transport.acquire(KIND, KEY, OTHER, wait_seconds=25)
    assert isinstance(answer, Failed)
    assert (answer.failure, answer.host) == (failure, HOLDER.host)
    assert isinstance(transport.acquire(KIND, KEY, OTHER), Granted)


def test_an_old_failure_is_forgotten(transport: DirectoryTransport, root: Path) -> None:
    lease = granted(transport)
    transport.release(KIND, KEY, lease, Failure("diagnosis", "no"))
    long_ago = time.time() - 601
    os.utime(folder_of(root) / lease_file(1), (long_ago, long_ago))
    assert isinstance(transport.acquire(KIND, KEY, OTHER, seen_generation=1), Granted)


# Damage


def test_what_is_damaged_is_kept_for_a_look(transport: DirectoryTransport, root: Path) -> None:
    entry = publish(transport)
    neff = folder_of(root) / entry.outputs[0].sha256
    neff.write_bytes(b"x" * neff.stat().st_size)
    assert transport.suspect(KIND, KEY, entry.outputs[0].sha256) == "quarantined"
    [bad] = folder_of(root).glob("bad-*")
    assert {path.name for path in bad.iterdir()} == {ENTRY_FILE, neff.name}


def test_a_damage_that_another_finder_repaired_meanwhile_is_not_repaired_again(
    transport: DirectoryTransport, root: Path, clock: Clock
) -> None:
    entry = publish(transport)
    neff = folder_of(root) / entry.outputs[0].sha256
    neff.write_bytes(b"x" * neff.stat().st_size)
    other = DirectoryTransport(root, "default")
    lease = hold_beside_entry(other, neff.parent)
    rebuilt = {"model.neff": build()}

    def repaired() -> None:
        if len(clock.slept) == 1:
            (neff.parent / ENTRY_FILE).unlink()
            publish(other, rebuilt)
            other.release(KIND, KEY, lease)

    clock.meanwhile = repaired
    assert transport.suspect(KIND, KEY, entry.outputs[0].sha256) == "quarantined"
    found = transport.fetch(KIND, KEY)
    assert found is not None
    assert found.neff == rebuilt["model.neff"]


def hold_beside_entry(transport: DirectoryTransport, folder: Path) -> Granted:
    """Take the lease of a key that has an entry, as whoever repairs it does."""
    hidden = (folder / ENTRY_FILE).rename(folder / "hidden")
    lease = granted(transport, OTHER)
    hidden.rename(folder / ENTRY_FILE)
    return lease


def test_damage_whose_lease_is_held_is_not_touched(transport: DirectoryTransport, root: Path, clock: Clock) -> None:
    entry = publish(transport)
    neff = folder_of(root) / entry.outputs[0].sha256
    neff.write_bytes(b"x" * neff.stat().st_size)
    hold_beside_entry(DirectoryTransport(root, "default"), neff.parent)
    with pytest.raises(Unreachable, match="other-node, process 2"):
        transport.suspect(KIND, KEY, entry.outputs[0].sha256)
    assert 5 < clock.now < 20


@pytest.mark.parametrize("what", ["torn", "of another key", "deep"])
def test_a_description_nobody_can_use_is_a_miss_and_is_replaced(
    transport: DirectoryTransport, root: Path, what: str
) -> None:
    publish(transport)
    path = folder_of(root) / ENTRY_FILE
    whole = path.read_bytes()
    path.write_bytes(
        {"torn": whole[:50], "of another key": whole.replace(b"graph", b"eager"), "deep": b"[" * 9999}[what]
    )
    assert transport.fetch(KIND, KEY) is None
    assert works(transport)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_something_else_in_place_of_an_output_is_damage_and_no_hang(
    transport: DirectoryTransport, root: Path, make: Callable[[Path], None]
) -> None:
    entry = publish(transport)
    neff = folder_of(root) / entry.outputs[0].sha256
    neff.unlink()
    make(neff)
    with pytest.raises(Damaged):
        transport.fetch(KIND, KEY)


def test_a_damaged_leftover_is_not_built_upon(transport: DirectoryTransport, root: Path) -> None:
    folder_of(root).mkdir(parents=True)
    (folder_of(root) / ENTRY.outputs[0].sha256).write_bytes(b"half of it")
    assert works(transport)


def test_a_sound_leftover_is_built_upon(transport: DirectoryTransport, root: Path) -> None:
    folder_of(root).mkdir(parents=True)
    neff = folder_of(root) / ENTRY.outputs[0].sha256
    neff.write_bytes(OUTPUTS["model.neff"])
    before = neff.stat().st_ino
    assert works(transport)
    assert neff.stat().st_ino == before


def test_leftovers_of_killed_writers_go_after_a_day(transport: DirectoryTransport, root: Path) -> None:
    folder_of(root).mkdir(parents=True)
    old, new, theirs = (folder_of(root) / f"{TEMPORARY_PREFIX}{name}" for name in ("0" * 32, "1" * 32, "photo.jpg"))
    for path, age in ((old, 90_000), (new, 3600), (theirs, 90_000)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
    publish(transport)
    assert (old.exists(), new.exists(), theirs.exists()) == (False, True, True)


WRITER = """
import sys
from pathlib import Path
from client.transports.directory import DirectoryTransport
from tests.client.programs import document, entry_of
import os
transport = DirectoryTransport(Path(sys.argv[1]), "default")
print("ready", flush=True)
outputs = {"model.neff": os.urandom(4 << 20), "compile.log": b"well" * 100000}
transport.publish(entry_of(document(), outputs), outputs, None)
"""


def test_a_writer_killed_at_any_moment_leaves_nothing_or_all(root: Path) -> None:
    reader = DirectoryTransport(root, "default")
    for attempt in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(attempt * 0.01)
            writer.send_signal(signal.SIGKILL)
        found = reader.fetch(KIND, KEY)
        if found is not None:
            assert reader.read_output(found.entry, "compile.log") == b"well" * 100000
    published = reader.publish(ENTRY, OUTPUTS, None)
    found = reader.fetch(KIND, KEY)
    assert found is not None
    assert found.entry.outputs == published.entry.outputs


# Addresses


def test_a_folder_is_named_by_path_or_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = (tmp_path / "a b").as_uri()
    for url in (f"{tmp_path}/a b", "./a b", "~/a b", f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        assert open_transport(url, "default", {}).address == expected


def test_only_the_last_part_of_the_folder_is_made(tmp_path: Path) -> None:
    """A mount that is not there must not be filled in below its mount point."""
    transport = open_transport(str(tmp_path / "mount" / "cache"), "default", {})
    assert transport.fetch(Kind.GRAPH, KEY) is None
    with pytest.raises(Unreachable, match="No such file or directory"):
        transport.acquire(Kind.GRAPH, KEY, HOLDER)
    assert not (tmp_path / "mount").exists()


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY, errno.EAGAIN])
@pytest.mark.parametrize("call", ["open", "link", "unlink"])
def test_one_error_of_a_network_file_system_loses_no_entry(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    transport = DirectoryTransport(root, "default")
    granted = transport.acquire(KIND, KEY, HOLDER)
    assert isinstance(granted, Granted)
    real, left = getattr(os, call), [2]

    def failing(*arguments: Any, **more: Any) -> Any:
        writes = call != "open" or arguments[1] & os.O_CREAT
        if writes and left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(*arguments, **more)

    monkeypatch.setattr(os, call, failing)
    assert transport.publish(ENTRY, OUTPUTS, granted).created
    monkeypatch.undo()
    assert left == [0]
    assert transport.fetch(KIND, KEY) is not None
