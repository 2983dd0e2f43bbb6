"""The directories of the node tier: opened level by level, each one checked, made where it is missing."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from client.node import ownership
from client.node.files import ABSENT, Files, is_directory
from client.node.permissions import Trust, UntrustedError
from client.stalls import StalledError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYOUT = "v1"


class Tree:
    """``<root>/v1/…`` as opened, trusted directories. Holds no descriptor between calls: safe across threads and forks.

    Methods raise `OSError` as the file system does, and `UntrustedError` for what others could have written. Whatever
    makes or removes something raises `client.node.ownership.NotOursError` in a folder that is not ours; reading
    needs no proof of that.
    """

    def __init__(self, root: Path, *, shared: bool, files: Files, signed: bool = False) -> None:
        """``signed``: signatures are required of what is read, see `client.node.permissions`."""
        self.root = root
        self.files = files
        self._shared = shared
        self._signed = signed
        self._claimed = False

    def claim(self, *, make: bool = True) -> None:
        """See, once, that the tier's own directory is ours; with ``make`` it is created if it is not there."""
        if self._claimed:
            return
        if make:
            self.files.make_root(self.root, 0o2770 if self._shared else 0o700, self._shared)
        with self.directory(make=True):
            return

    def forget(self) -> None:
        """Look anew at the next `claim`: somebody has removed the tier."""
        self._claimed = False

    @contextmanager
    def directory(self, *names: str, make: bool = False) -> Iterator[tuple[int, Trust]]:
        """Open ``<root>/v1/<names…>`` and give its descriptor; with ``make``, missing levels are created."""
        files = self.files
        descriptor = self._open_root()
        try:
            trust = Trust.of_tier(
                files.status(descriptor), shared=self._shared, path=str(self.root), signed=self._signed
            )
            if make and not self._claimed:
                self._claim(descriptor, trust)
            shown = str(self.root)
            for name in (LAYOUT, *names):
                shown = f"{shown}/{name}"
                below = self._open_level(name, descriptor, shown, trust, make=make)
                files.close(descriptor)
                descriptor = below
            yield descriptor, trust
        finally:
            files.close(descriptor)

    def open_lock_file(self, name: str, directory: int, trust: Trust) -> int:
        """Open, or make, a trusted file to lock in an opened directory."""
        descriptor = self.files.open_lock_file(name, directory, trust.file_mode)
        try:
            trust.check(self.files.status(descriptor), name)
            if trust.widens:
                with suppress(PermissionError):  # made by another member, who has set it
                    self.files.set_mode(descriptor, trust.file_mode)
        except BaseException:
            self.files.close(descriptor)
            raise
        return descriptor

    def create_file(self, name: str, directory: int, trust: Trust, content: bytes) -> None:
        """Write a new file into an opened directory."""
        descriptor = self.files.create_file(name, directory, trust.file_mode)
        try:
            if trust.widens:
                # the umask may have taken from the group what the tier gives it
                self.files.set_mode(descriptor, trust.file_mode)
            self.files.write(descriptor, content)
        finally:
            self.files.close(descriptor)

    def replace_file(self, name: str, directory: int, trust: Trust, content: bytes) -> None:
        """Put a file in the place of another, or of none, at once and whole."""
        temporary = unique_name(f"{name}-")
        try:
            self.create_file(temporary, directory, trust, content)
            self.files.rename(temporary, name, directory)
        except BaseException:
            with suppress(OSError):
                self.files.unlink(temporary, directory)
            raise

    def check(self) -> None:
        """Raise `NotOursError` for a directory that `claim` would refuse, and write nothing."""
        root = self._open_root()
        try:
            self._check(root)
        finally:
            self.files.close(root)

    def _check(self, root: int) -> bool:
        """Return whether the opened root bears our marker."""
        files, shown = self.files, str(self.root)
        if not self._has(LAYOUT, root):
            ownership.check_new(files, root, shown)
            return False
        top = files.open_directory(LAYOUT, root)
        try:
            marked = ownership.is_marked(files, top, shown)
            if not marked:
                ownership.check_unmarked(files, top, shown)
            return marked
        finally:
            files.close(top)

    def _claim(self, root: int, trust: Trust) -> None:
        """Find our marker in the opened root, or write it: into a new tier, or one of a version that knew none."""
        files, shown = self.files, str(self.root)
        top = None
        try:
            if self._has(LAYOUT, root):  # checked for its owner before anything in it is believed
                files.close(self._open_level(LAYOUT, root, f"{shown}/{LAYOUT}", trust, make=False))
            if not self._check(root):
                top = self._open_level(LAYOUT, root, f"{shown}/{LAYOUT}", trust, make=True)
                self.replace_file(ownership.MARKER, top, trust, ownership.MARK)
        except FileNotFoundError:
            # NFS may send a rename again that was done, and say that there is nothing to rename
            if top is None or not ownership.is_marked(files, top, shown):
                raise
        finally:
            if top is not None:
                files.close(top)
        self._claimed = True

    def _has(self, name: str, parent: int) -> bool:
        try:
            self.files.status_of(name, parent)
        except OSError as error:
            if error.errno in ABSENT:
                return False
            raise
        return True

    def _open_root(self) -> int:
        try:
            return self.files.open_directory(self.root)
        except OSError as error:
            raise _explained(error, str(self.root)) from error

    def _open_level(self, name: str, parent: int, shown: str, trust: Trust, *, make: bool) -> int:
        try:
            descriptor = self.files.open_directory(name, parent)
        except OSError as error:
            if not make or error.errno not in ABSENT:
                raise _explained(error, shown) from error
            self._make_level(name, parent, trust)
            descriptor = self.files.open_directory(name, parent)
        try:
            trust.check(self.files.status(descriptor), shown)
        except BaseException:
            self.files.close(descriptor)
            raise
        return descriptor

    def _make_level(self, name: str, parent: int, trust: Trust) -> None:
        try:
            self.files.make_directory(name, parent, trust.directory_mode)
        except FileExistsError:
            return  # another process was first
        if trust.widens:
            descriptor = self.files.open_directory(name, parent)
            try:
                self.files.set_mode(descriptor, trust.directory_mode)
            finally:
                self.files.close(descriptor)

    def remove(self, name: str, parent: int) -> int:
        """Remove a file of ours, or an entry's folder, as far as it goes; return the bytes that were freed.

        Of a folder only the files of an entry go: whatever else somebody put there stays, and the folder with it.
        """
        files = self.files
        self.claim(make=False)
        try:
            status = files.status_of(name, parent)
            if not is_directory(status):
                files.unlink(name, parent)
                return status.st_size
            descriptor = files.open_directory(name, parent)
        except OSError:
            return 0
        freed = 0
        try:
            for child in ownership.ENTRY_FILES.intersection(files.list(descriptor)):
                with suppress(OSError):
                    size = files.status_of(child, descriptor).st_size
                    files.unlink(child, descriptor)
                    freed += size
        except OSError:
            pass  # what cannot be listed now is left to the next sweep
        finally:
            files.close(descriptor)
        with suppress(OSError):  # NFS: busy while another client reads; the next sweep takes the empty directory
            files.remove_directory(name, parent)
        return freed


def unique_name(prefix: str) -> str:
    """Return a name that no other process makes: ``prefix``, process id, random digits."""
    return f"{prefix}{os.getpid()}-{secrets.token_hex(8)}"


def temporary_beside(path: Path) -> Path:
    """Return a new name in the folder of ``path`` for what will take its place.

    It holds no part of the name, which may be as long as the file system allows (255 bytes, 143 on eCryptfs).
    """
    return path.with_name(unique_name(".neff-cache-"))


def _explained(error: OSError, shown: str) -> Exception:
    """Return the exception to raise for a directory that cannot be opened."""
    if isinstance(error, StalledError):
        return error
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return UntrustedError(f"{shown} is a symbolic link or no directory; name the real directory")
    return OSError(error.errno, error.strerror, shown)
