"""Files on a folder that several machines write to at once, perhaps over a network file system whose locks lie.

Nothing here takes a lock. Each file is written under a name nobody else uses and then gets its own name in one step
that fails if the name is taken:

- ``link``, where the file system has hard links;
- otherwise ``claim``: whoever creates the name with O_EXCL, empty, may rename its finished file over it. A reader that
  comes in between finds an empty file, and whoever reads must take that as unreadable, not as content. A process killed
  in between leaves one.

Where neither refuses a name that is taken (a FUSE mount of some buckets), there is no create-only write and
`SharedFolder.create` raises `client.errors.Refused` called ``no_create_only``.

A network file system that fails once (a server that restarts, a handle gone stale) is asked again, a few times within
about a second: what is written here is written anew each time.

New folders take the permissions of the root, and new files its read permissions, whatever the umask: on a folder that
was opened to others an entry that only its writer can read would be a miss for them without a word.
"""

from __future__ import annotations

import errno
import io
import os
import random
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from client.errors import Denied, Refused, TransportError, Unreachable
from client.layout import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")
CreateOnly: TypeAlias = Literal["link", "claim"]

NO_CREATE_ONLY = "no_create_only"
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_DIRECTORY_BITS = 0o3777
_READ_BITS = 0o444
_PASSING = {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT}
_PAUSES = (0.05, 0.2, 0.8)
"""Seconds: the longest pauses between the tries of a write that failed for a reason which may pass."""
_NO_FSYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}


@contextmanager
def translated(what: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` into the error of `client.errors` that it means; ``what`` is what could not be done."""
    try:
        yield
    except TransportError:
        raise
    except OSError as error:
        sentence = f"cannot {what} {path}: {error.strerror or error}"
        if error.errno in _NO_RIGHT:
            raise Denied(sentence) from error
        if error.errno in _FULL:
            raise Refused(sentence, status=507, name="store_full") from error
        raise Unreachable(sentence) from error


@contextmanager
def opened(path: Path) -> Iterator[io.FileIO | None]:
    """Open a regular file for unbuffered reading; None if it is not there, or is no regular file.

    A handle gone stale (NFS: replaced on the server since the name was looked up) is opened once more.
    """
    with translated("read", path):
        file = _open(path)
        try:
            yield file
        finally:
            if file is not None:
                file.close()


def _open(path: Path) -> io.FileIO | None:
    try:
        try:
            return _open_regular(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return _open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        # Not Denied: one writer's wrong file mode is no reason to stop reading everything else.
        raise Refused(f"no right to read {path}: {error.strerror}", status=0, name="permission") from error


def _open_regular(path: Path) -> io.FileIO | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return io.FileIO(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read(path: Path, limit: int) -> tuple[bytes, float] | None:
    """Return the bytes of a file and the time of its last change, or None if it is not there or over ``limit``."""
    with opened(path) as file:
        if file is None:
            return None
        raw = bytearray()
        while len(raw) <= limit and (part := file.read(limit + 1 - len(raw))):
            raw += part
        return (bytes(raw), os.fstat(file.fileno()).st_mtime) if len(raw) <= limit else None


class SharedFolder:
    """Create-only writes below ``root``. Every method raises `client.errors.TransportError`."""

    def __init__(
        self,
        root: Path,
        *,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.root = root
        self._sleep = sleep
        self._uniform = uniform
        self._create_only: CreateOnly | None = None

    def make_folder(self, folder: Path) -> None:
        """Make ``folder`` and what lies between it and the root. Of the root itself only the last part is made."""
        with translated("make the folder", folder):
            try:
                self._mkdir(folder)
            except FileNotFoundError:
                if folder == self.root:
                    raise
                self.make_folder(folder.parent)
                self._mkdir(folder)

    def _mkdir(self, folder: Path) -> None:
        with suppress(FileExistsError):
            folder.mkdir()
            if folder != self.root:
                bits = stat.S_IMODE(self.root.stat().st_mode) & _DIRECTORY_BITS
                if stat.S_IMODE(folder.stat().st_mode) & _DIRECTORY_BITS != bits:
                    folder.chmod(bits)

    def create(self, path: Path, data: bytes, *, durable: bool = True) -> bool:
        """Create a file whole, its folder being there; False if its name is taken. ``durable``: survives a crash."""
        how = self.create_only(path.parent)

        def attempt() -> bool:
            with self._temporary(path.parent, data, durable=durable) as temporary:
                created = _link(temporary, path) if how == "link" else None
                if created is None:
                    created = _claim(temporary, path)
                if created and durable:
                    _sync_folder(path.parent)
                return created

        with translated("write", path):
            return self._again(attempt)

    def replace(self, path: Path, data: bytes) -> None:
        """Create a file whole, or replace it."""

        def attempt() -> None:
            with self._temporary(path.parent, data, durable=False) as temporary:
                temporary.replace(path)

        with translated("write", path):
            self._again(attempt)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        with translated("remove", path):
            self._again(lambda: path.unlink(missing_ok=True))

    def _again(self, attempt: Callable[[], T]) -> T:
        """Return what ``attempt`` returns, calling it again after errors that may pass; raises its last `OSError`."""
        for pause in _PAUSES:
            try:
                return attempt()
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
            self._sleep(self._uniform(pause / 2, pause))
        return attempt()

    def now(self, folder: Path) -> float:
        """Return the time by the clock that stamps files in ``folder``, in seconds."""
        with translated("write to", folder), self._temporary(folder, b".", durable=False) as temporary:
            return temporary.stat().st_mtime

    def create_only(self, folder: Path) -> CreateOnly:
        """Return how a name is created only if it is free; found out in ``folder``, once. Raises `Refused`."""
        if self._create_only is None:
            with translated("write to", folder):
                self._create_only = self._probe(folder)
        return self._create_only

    def _probe(self, folder: Path) -> CreateOnly:
        target = folder / _unused_name()
        with self._temporary(folder, b"1", durable=False) as one, self._temporary(folder, b"2", durable=False) as two:
            try:
                first = _link(one, target)
                if first is not None:
                    refused, how = not _link(two, target), "link"
                else:
                    first, refused, how = _claim(one, target), not _claim(two, target), "claim"
                kept = read(target, 1)
            finally:
                target.unlink(missing_ok=True)
        if not (first and refused and kept is not None and kept[0] == b"1"):
            raise Refused(
                f"{self.root} does not keep a name to its first writer: entries cannot be shared safely there; "
                "use a file system with O_EXCL, or a cache server",
                status=0,
                name=NO_CREATE_ONLY,
            )
        return "link" if how == "link" else "claim"

    @contextmanager
    def _temporary(self, folder: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
        path = folder / _unused_name()
        mode = 0o600 | (self.root.stat().st_mode & _READ_BITS)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
                    with suppress(OSError):  # some mounts fix all modes
                        os.fchmod(descriptor, mode)
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                if durable:
                    os.fsync(descriptor)
            yield path
        finally:
            with suppress(OSError):  # what was published stays published, whatever becomes of the other name
                path.unlink(missing_ok=True)


def _unused_name() -> str:
    return TEMPORARY_PREFIX + secrets.token_hex(16)


def _link(temporary: Path, path: Path) -> bool | None:
    """Give the file its second name; False if that is taken, None if there are no hard links here."""
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        # NFS sends a call again when the answer was lost: the name may be taken by this very file.
        return temporary.stat().st_nlink > 1
    except OSError as error:
        if error.errno in _NO_LINKS:
            return None
        raise
    return True


def _claim(temporary: Path, path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    temporary.replace(path)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:  # some file systems have no such call for folders, and need none
            raise
    finally:
        os.close(descriptor)
