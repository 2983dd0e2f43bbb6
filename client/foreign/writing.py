"""Puts entries into another cache's directory: each one whole, or not at all, beside jobs that use it.

An entry that is a folder is written under a name that no cache reads, its marker last, and then renamed into place at
once. One that is a file is written likewise and linked into place. Neither replaces anything: what stands there,
complete or not, belongs to whoever wrote it, and is reported. So no lock has to be taken, which a killed process would
leave behind, and a killed process leaves nothing that the other cache would take for an entry.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from client.errors import ConfigurationError
from client.foreign.layout import TEMPORARY, TEMPORARY_PREFIX, State
from client.node.files import ABSENT, Files, is_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from client.foreign.layout import Layout

LEFTOVER_SECONDS = 3600.0
"""After which what a killed process left behind is removed: no write takes as long."""
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


class There(NamedTuple):
    """What stands at an entry's place: its state, and bytes by file name for the files that we would write."""

    state: State
    sizes: Mapping[str, int]


class Writer:
    """One cache's directory, which is made if it is not there. Raises `OSError` as the file system does.

    New folders and files get the root's own permission bits, whatever the umask: an entry that its cache's other users
    cannot read is a silent miss for them. Files are never writable by everybody.
    """

    def __init__(
        self, root: Path, layout: Layout, *, files: Files | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._root = root
        self._layout = layout
        self._files = files or Files()
        self._now = now

    def there(self, name: str) -> There | None:
        """Return what stands at the entry's place, None if nothing does."""
        layout, files = self._layout, self._files
        sizes: dict[str, int] = {}
        try:
            with self._folder(layout.folder(name), make=False) as (directory, _):
                found = files.list(directory)
                if layout.is_single:  # the folder is shared: only the entry's own files count
                    prefix = f"{layout.folder(name)}/"
                    found = [file for file in found if (layout.place(prefix + file) or ("",))[0] == name]
                    if not found:
                        return None
                for file in found:
                    status = files.status_of(file, directory)
                    if stat.S_ISREG(status.st_mode):
                        sizes[file] = status.st_size
        except OSError as error:
            if error.errno in ABSENT:
                return None
            raise
        return There(layout.state(name, found), {file: sizes[file] for file in layout.outputs(name) if file in sizes})

    def read(self, name: str, file: str) -> bytes | None:
        """Return the bytes of one of an entry's files, None if it is not there."""
        with suppress(OSError), self._folder(self._layout.folder(name), make=False) as (directory, _):
            descriptor = self._files.open_file(file, directory)
            try:
                return self._files.read(descriptor, self._files.status(descriptor).st_size)
            finally:
                self._files.close(descriptor)
        return None

    def write(self, name: str, contents: Mapping[str, bytes]) -> bool:
        """Write an entry, ``contents`` by file name; False if something stands there, which is left as it is."""
        parent, _, last = self._layout.folder(name).rpartition("/")
        if self._layout.is_single:
            return self._write_file(f"{parent}/{last}", contents)
        with self._folder(parent, make=True) as (directory, mode):
            if self._exists(last, directory):
                return False
            temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            self._make_folder(temporary, directory, mode)
            try:
                self._fill(temporary, directory, mode, contents)
                # an empty folder in the target's place would be replaced: that of a job which begins at this moment
                if self._exists(last, directory):
                    return False
                self._files.rename(temporary, last, directory)
            except OSError as error:
                if error.errno in _TAKEN:
                    return False
                raise
            finally:
                self._remove(temporary, directory)
            os.fsync(directory)
        return True

    def sweep(self) -> int:
        """Remove what killed processes left behind; return how many pieces there were."""
        with suppress(OSError), self._folder("", make=False) as (root, _):
            return self._sweep(root, depth=3)
        return 0

    def _write_file(self, folder: str, contents: Mapping[str, bytes]) -> bool:
        ((file, content),) = contents.items()
        with self._folder(folder, make=True) as (directory, mode):
            temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            try:
                self._create(temporary, directory, mode, content)
                self._link(temporary, file, directory)
            except FileExistsError:
                return False
            finally:
                with suppress(OSError):
                    self._files.unlink(temporary, directory)
            os.fsync(directory)
        return True

    def _link(self, temporary: str, file: str, directory: int) -> None:
        try:
            os.link(temporary, file, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # a file system without hard links: only a file that comes in this very moment could be replaced, by a
            # build of the same program
            if self._exists(file, directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file) from error
            self._files.rename(temporary, file, directory)

    def _fill(self, folder: str, parent: int, mode: int, contents: Mapping[str, bytes]) -> None:
        directory = self._files.open_directory(folder, parent)
        try:
            for file, content in contents.items():
                self._create(file, directory, mode, content)
            if self._layout.marker is not None:
                self._create(self._layout.marker, directory, mode, b"")
            os.fsync(directory)
        finally:
            self._files.close(directory)

    def _create(self, name: str, directory: int, mode: int, content: bytes) -> None:
        bits = mode & 0o666 & ~stat.S_IWOTH
        descriptor = self._files.create_file(name, directory, bits)
        try:
            self._files.set_mode(descriptor, bits)
            self._files.write(descriptor, content)
            os.fsync(descriptor)
        finally:
            self._files.close(descriptor)

    @contextmanager
    def _folder(self, path: str, *, make: bool) -> Iterator[tuple[int, int]]:
        """Open a folder below the root, "" for itself; give its descriptor, and the root's permission bits."""
        files = self._files
        if make:
            self._make_root()
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(files.status(descriptor).st_mode)
            for part in filter(None, path.split("/")):
                try:
                    below = files.open_directory(part, descriptor)
                except FileNotFoundError:
                    if not make:
                        raise
                    with suppress(FileExistsError):
                        self._make_folder(part, descriptor, mode)
                    below = files.open_directory(part, descriptor)
                files.close(descriptor)
                descriptor = below
            yield descriptor, mode
        finally:
            files.close(descriptor)

    def _make_root(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigurationError(f"{self._root} is no directory: name the other cache's root") from None

    def _make_folder(self, name: str, parent: int, mode: int) -> None:
        self._files.make_directory(name, parent, mode)
        descriptor = self._files.open_directory(name, parent)
        try:
            self._files.set_mode(descriptor, mode)
        finally:
            self._files.close(descriptor)

    def _exists(self, name: str, directory: int) -> bool:
        try:
            self._files.status_of(name, directory)
        except FileNotFoundError:
            return False
        return True

    def _remove(self, folder: str, parent: int) -> None:
        """Remove a folder of ours with the files in it, if it is still there."""
        files = self._files
        with suppress(OSError):
            directory = files.open_directory(folder, parent)
            try:
                for name in files.list(directory):
                    files.unlink(name, directory)
            finally:
                files.close(directory)
            files.remove_directory(folder, parent)

    def _sweep(self, directory: int, depth: int) -> int:
        files = self._files
        removed = 0
        for name in files.list(directory):
            with suppress(OSError):
                status = files.status_of(name, directory)
                if TEMPORARY.fullmatch(name):
                    if self._now() - status.st_mtime > LEFTOVER_SECONDS:
                        removed += 1
                        if is_directory(status):
                            self._remove(name, directory)
                        else:
                            files.unlink(name, directory)
                elif depth and is_directory(status):
                    below = files.open_directory(name, directory)
                    try:
                        removed += self._sweep(below, depth - 1)
                    finally:
                        files.close(below)
        return removed
