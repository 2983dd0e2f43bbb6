"""Every call that the node tier makes on a file system, in one small layer.

The tier is written for file systems that fill up, turn read-only, show renames late, limit links and lie about locks.
Tests put such a file system in place of this class. Names are relative to an opened directory, and no symbolic link is
ever followed, so that nobody can turn a checked path into another one between the check and the use.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from client import mounts

TYPE_CHECKING = False  # as in the launcher, whose hits have no time for typing
if TYPE_CHECKING:
    from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: a planted pipe must not hang a job
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

ABSENT = frozenset({errno.ENOENT, errno.ESTALE})
"""What a file system says of a name that is not there, or no longer: ESTALE is NFS's word for the latter."""


class Files:
    """The calls of the real file system. Each raises `OSError` as the kernel reports it.

    ``moved`` counts the bytes that were read and written, ``piece`` bytes at a time at most.
    """

    moved = 0
    piece = 1 << 62

    def may_stall(self, path: str) -> bool:
        """Return whether calls on ``path`` may never return; itself it always does: see `client.mounts`."""
        return mounts.may_stall(path)

    def open_directory(self, name: str | os.PathLike[str], parent: int | None = None) -> int:
        """Open a directory and return its descriptor; a symbolic link is ENOTDIR or ELOOP."""
        return os.open(name, _DIRECTORY, dir_fd=parent)

    def open_file(self, name: str, parent: int) -> int:
        """Open a file for reading."""
        return os.open(name, _READ, dir_fd=parent)

    def create_file(self, name: str, parent: int, mode: int) -> int:
        """Create a file that must not exist yet, for writing."""
        return os.open(name, _CREATE, mode, dir_fd=parent)

    def open_lock_file(self, name: str, parent: int, mode: int) -> int:
        """Open a file for locking, and create it if need be; no child started by exec inherits it."""
        return os.open(name, _LOCK, mode, dir_fd=parent)

    def open_appending(self, name: str, parent: int) -> int:
        """Open a file that exists for reading and for writing at its end."""
        return os.open(name, _APPEND, dir_fd=parent)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def make_directory(self, name: str, parent: int, mode: int) -> None:
        """Create a directory."""
        os.mkdir(name, mode, dir_fd=parent)

    def make_root(self, path: Path, mode: int, exact: bool) -> None:
        """Create a tier's own directory if it is not there, parents by the umask, itself too unless ``exact``."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=mode)
        except FileExistsError:
            return
        if exact:
            # mkdir takes neither the set-group-id bit nor what the umask forbids
            path.chmod(mode)

    def set_mode(self, descriptor: int, mode: int) -> None:
        """Set permission bits, whatever the process's umask says."""
        os.fchmod(descriptor, mode)

    def status(self, descriptor: int) -> os.stat_result:
        """Return the status of what is opened."""
        return os.fstat(descriptor)

    def status_of(self, name: str, parent: int) -> os.stat_result:
        """Return the status of a name, of the link itself if it is one."""
        return os.stat(name, dir_fd=parent, follow_symlinks=False)

    def read(self, descriptor: int, size: int) -> bytes:
        """Return up to ``size`` bytes from the beginning of the file."""
        chunks: list[bytes] = []
        offset = 0
        while offset < size:
            chunk = os.pread(descriptor, min(size - offset, self.piece), offset)
            if not chunk:
                break
            chunks.append(chunk)
            offset += len(chunk)
            self.moved += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all of ``data``."""
        view = memoryview(data)
        while view:
            written = os.write(descriptor, view[: self.piece])
            view = view[written:]
            self.moved += written

    def overwrite(self, descriptor: int, data: bytes) -> None:
        """Make ``data`` the whole content of an opened file."""
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        self.write(descriptor, data)

    def list(self, descriptor: int) -> list[str]:
        """Return the names in a directory, in no order."""
        return os.listdir(descriptor)

    def rename(self, old: str, new: str, parent: int, new_parent: int | None = None) -> None:
        """Rename; an empty directory called ``new`` is replaced, a filled one is EEXIST or ENOTEMPTY."""
        os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent if new_parent is None else new_parent)

    def unlink(self, name: str, parent: int) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=parent)

    def remove_directory(self, name: str, parent: int) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=parent)

    def touch(self, descriptor: int) -> None:
        """Set access and modification time to now."""
        os.utime(descriptor)

    def space(self, descriptor: int) -> os.statvfs_result:
        """Return the free space and inodes of the file system."""
        return os.fstatvfs(descriptor)

    def lock(self, descriptor: int) -> bool:
        """Take the kernel's exclusive lock if it is free, and say whether it is ours."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, descriptor: int) -> None:
        """Give the kernel's lock back, also for descriptors that a forked child still holds."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_directory(status: os.stat_result) -> bool:
    """Return whether ``status`` is that of a directory."""
    return stat.S_ISDIR(status.st_mode)


def same_file(left: os.stat_result, right: os.stat_result) -> bool:
    """Return whether both are the status of one file."""
    return (left.st_dev, left.st_ino) == (right.st_dev, right.st_ino)
