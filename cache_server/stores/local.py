"""The store on a local disk (or a file system mounted as one)."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cache_server.address import Address
from cache_server.stores.base import MAX_SMALL_OBJECT, MetaName, StoredFile, StoreError
from cache_server.stores.local_files import FILE_MODE, LocalOutput, LocalUpload, store_errors, sync_folder
from client.errors import WireError
from client.layout import ENTRY_FILE, META, QUARANTINE, is_entry_file, is_quarantine_folder, quarantine_folder
from client.names import Kind, is_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cache_server.stores.base import Blob

SERVER_LOCK = ".server.lock"
MARKER = ".neff-cache-store"
"""A file that says that the folder is ours: without it nothing is stored there, and nothing deleted."""
_UPLOADS = ".uploads"
_UPLOAD = re.compile("[0-9a-f]{32}")
_KINDS = frozenset[str](Kind)
_OWN_FILES = frozenset({SERVER_LOCK, MARKER, "lost+found"})
_OWN_FOLDERS = frozenset({_UPLOADS, META, QUARANTINE})
_FOLDER_MODE = 0o750
_LINK_ATTEMPTS = 5


class LocalStore:
    """`cache_server.stores.base.Store` on a folder. Create-only is a hard link, which never replaces."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._uploads = root / _UPLOADS
        self._folders_lock = threading.Lock()

    @property
    def location(self) -> str:
        """The folder."""
        return str(self.root)

    def _folder(self, address: Address) -> Path:
        return self.root / address.path

    def _new_temporary(self) -> Path:
        """Return an unused path for bytes that have no name yet."""
        return self._uploads / secrets.token_hex(16)

    def open(self) -> None:
        """Create the folder and see that hard links work there and never replace."""
        with store_errors(f"the store folder {self.root} cannot be used"):
            self.root.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self._claim()
            self._uploads.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            first, second = self._new_temporary(), self._new_temporary()
            try:
                first.touch(mode=FILE_MODE)
                os.link(first, second)
                with contextlib.suppress(FileExistsError):
                    os.link(first, second)
                    raise StoreError(
                        f"hard links replace files in {self.root}: this file system cannot hold a store", lasting=True
                    )
            finally:
                first.unlink(missing_ok=True)
                second.unlink(missing_ok=True)

    def _claim(self) -> None:
        """See that the folder is ours, by the marker that we leave in it; one of an older version gets it now."""
        marker = self.root / MARKER
        if marker.is_file():
            return
        stranger = next(self._strangers(), None)
        if stranger is not None:
            raise StoreError(
                f"the store folder {self.root} holds what neff-cache did not make ({stranger!r}), and old files are"
                " deleted in a store: name a new or empty folder with --store; if it is a store all the same, make an"
                f" empty file {MARKER} in it",
                lasting=True,
            )
        with contextlib.suppress(FileExistsError):
            marker.touch(mode=FILE_MODE, exist_ok=False)
        sync_folder(self.root)

    def _strangers(self) -> Iterator[str]:
        """Yield what lies in the folder that no store has."""
        for path in sorted(self.root.iterdir()):
            name = path.name
            if name in _OWN_FILES or name.startswith(".nfs"):
                continue
            if name not in _OWN_FOLDERS and not is_project(name):
                yield name
            elif name == _UPLOADS:
                yield from (f"{name}/{each.name}" for each in path.iterdir() if not _UPLOAD.fullmatch(each.name))
            elif name not in _OWN_FOLDERS:
                yield from (f"{name}/{each.name}" for each in path.iterdir() if each.name not in _KINDS)

    def close(self) -> None:
        """Nothing is held between calls."""

    def check(self) -> None:
        """See that a file can be made and removed."""
        with store_errors("the store folder cannot be written"):
            probe = self._new_temporary()
            probe.touch(mode=FILE_MODE)
            probe.unlink()

    def _link_into_place(self, temporary: Path, below: str, name: str) -> bool:
        """Link a durable temporary file to its name; False if the name is taken. Durable when it returns."""
        folder = self.root / below
        for attempt in range(_LINK_ATTEMPTS):
            # under the lock: a removal in this process takes no folder away in between, and who finds a folder can
            # rely on it being durable
            with self._folders_lock:
                self._make_folder(folder)
                try:
                    os.link(temporary, folder / name)
                except FileExistsError:
                    return False
                except FileNotFoundError:
                    # another server on the same folder did
                    if attempt == _LINK_ATTEMPTS - 1:
                        raise
                    continue
            # if the file is removed again by now, there is no folder to make durable
            with contextlib.suppress(FileNotFoundError):
                sync_folder(folder)
            return True
        return False

    @staticmethod
    def _make_folder(folder: Path) -> None:
        if folder.is_dir():
            return
        missing = [folder]
        while not missing[-1].parent.is_dir():
            missing.append(missing[-1].parent)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=_FOLDER_MODE)
            sync_folder(path.parent)

    def read_entry(self, address: Address) -> bytes | None:
        """Read ``entry.json``."""
        with store_errors("reading entry.json"):
            try:
                return _read(self._folder(address) / ENTRY_FILE)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def create_entry(self, address: Address, data: bytes) -> bool:
        """Write ``entry.json`` beside its outputs."""
        return self._create(address.path, ENTRY_FILE, data)

    def _create(self, folder: str, name: str, data: bytes) -> bool:
        upload = LocalUpload(self._new_temporary(), self._link_into_place)
        try:
            upload.write(data)
            return upload.commit_as(folder, name)
        finally:
            upload.abort()

    def stored_size(self, blob: Blob) -> int | None:
        """Return the file's size."""
        with store_errors("looking for an output"):
            try:
                return (self._folder(blob.address) / blob.file_name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def open_output(self, blob: Blob, *, fresh: bool = False) -> LocalOutput | None:
        """Open the file; ``fresh``: without what the kernel holds of it in memory."""
        with store_errors("opening an output"):
            try:
                path = self._folder(blob.address) / blob.file_name
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except (FileNotFoundError, NotADirectoryError):
                return None
            if fresh:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            return LocalOutput(descriptor)

    def first_bytes(self, blob: Blob, count: int) -> bytes | None:
        """Read the beginning of the file."""
        opened = self.open_output(blob)
        if opened is None:
            return None
        with contextlib.closing(opened):
            return b"".join(opened.chunks(0, count))

    def presign(self, blob: Blob, seconds: int) -> None:
        """Nobody but this server reads a local disk."""

    def begin_upload(self, blob: Blob) -> LocalUpload:  # noqa: ARG002 - a bucket names its uploads by key
        """Create a temporary file."""
        return LocalUpload(self._new_temporary(), self._link_into_place)

    def files(self, address: Address) -> list[StoredFile]:
        """List the entry's folder."""
        found: list[StoredFile] = []
        with store_errors("listing an entry"):
            try:
                with os.scandir(self._folder(address)) as items:
                    for item in items:
                        with contextlib.suppress(FileNotFoundError):
                            status = item.stat(follow_symlinks=False)
                            found.append(StoredFile(item.name, status.st_size, status.st_mtime))
            except (FileNotFoundError, NotADirectoryError):
                return []
        return found

    def remove(self, address: Address, file_name: str) -> None:
        """Unlink a file, durably, and the folder with the last one."""
        folder = self._folder(address)
        with store_errors("removing a file"):
            try:
                (folder / file_name).unlink()
                sync_folder(folder)
            except FileNotFoundError:
                pass
        with self._folders_lock, contextlib.suppress(OSError):
            folder.rmdir()

    def set_aside(self, address: Address, file_names: list[str], label: str) -> None:
        """Link the files into the quarantine: as good as a copy, because stored files never change."""
        target = self.root / quarantine_folder(address.project, address.kind, address.key, label)
        with store_errors("setting files aside"):
            target.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            for name in file_names:
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    os.link(self._folder(address) / name, target / name)
            # the age that counts is that of the quarantine, not that of the damaged file
            os.utime(target)
            sync_folder(target)

    def addresses(self) -> Iterator[Address]:
        """Walk the tree."""
        with store_errors("walking the store"):
            for project in self._folders(self.root):
                for kind in self._folders(project):
                    for prefix in self._folders(kind):
                        for key in self._folders(prefix):
                            try:
                                address = Address.parse(project.name, kind.name, key.name)
                            except WireError:
                                continue
                            yield address

    @staticmethod
    def _folders(folder: Path) -> list[Path]:
        try:
            with os.scandir(folder) as items:
                return sorted(Path(item.path) for item in items if item.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create_meta(self, name: MetaName, data: bytes) -> bool:
        """Write a file beside the earlier revisions."""
        folder, _, file_name = name.path.rpartition("/")
        return self._create(folder, file_name, data)

    def read_meta(self, name: MetaName) -> bytes | None:
        """Read a file."""
        with store_errors("reading policy"):
            try:
                return _read(self.root / name.path)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def meta(self, table: str = "", row: str = "") -> Iterator[MetaName]:
        """Walk the folder ``meta``."""
        with store_errors("walking policy"):
            for path in self.root.joinpath(META, table, row).rglob("*.json"):
                name = MetaName.parse(path.relative_to(self.root).as_posix())
                if name is not None:
                    yield name

    def free_bytes(self) -> int | None:
        """Ask the file system what it would let this process write; nothing if it has no inodes left."""
        with store_errors("asking for free space"):
            status = os.statvfs(self.root)
        if status.f_files and not status.f_favail:
            return 0
        return status.f_bavail * status.f_frsize

    def walk(self) -> Iterator[StoredFile]:
        """Walk the tree, folder by folder in the order of their names; links are files, never followed."""
        for file in self._walk(""):
            if file.name not in _OWN_FILES:
                yield file

    def unfinished(self) -> Iterator[StoredFile]:
        """List temporary files."""
        return (file for file in self._walk(f"{_UPLOADS}/") if _UPLOAD.fullmatch(file.name.rpartition("/")[2]))

    def _walk(self, folder: str) -> Iterator[StoredFile]:
        folders: list[str] = []
        files: list[StoredFile] = []
        with store_errors("walking the store"):
            try:
                with os.scandir(self.root / folder) as items:
                    for item in items:
                        if item.is_dir(follow_symlinks=False):
                            folders.append(f"{folder}{item.name}/")
                            continue
                        with contextlib.suppress(FileNotFoundError):
                            status = item.stat(follow_symlinks=False)
                            files.append(StoredFile(folder + item.name, status.st_size, status.st_mtime))
            except (FileNotFoundError, NotADirectoryError):
                return
        yield from sorted(files)
        for name in sorted(folders):
            if name != f"{_UPLOADS}/":
                yield from self._walk(name)

    def sweep_uploads(self, before: float) -> int:
        """Remove temporary files by age."""
        removed = 0
        with store_errors("sweeping uploads"), os.scandir(self._uploads) as items:
            for item in items:
                with contextlib.suppress(FileNotFoundError):
                    ours = _UPLOAD.fullmatch(item.name) and item.is_file(follow_symlinks=False)
                    if ours and item.stat(follow_symlinks=False).st_mtime < before:
                        Path(item.path).unlink()
                        removed += 1
        return removed

    def sweep_quarantine(self, before: float) -> int:
        """Remove quarantined entries by age, and the folders they leave empty."""
        removed = 0
        with store_errors("sweeping the quarantine"):
            for project in self._folders(self.root / QUARANTINE):
                for kind in self._folders(project):
                    for key in self._folders(kind):
                        for entry in self._folders(key):
                            ours = is_quarantine_folder(entry.relative_to(self.root).as_posix())
                            if ours and entry.stat().st_mtime < before:
                                removed += self._remove_quarantined(entry)
                        with contextlib.suppress(OSError):
                            key.rmdir()
        return removed

    @staticmethod
    def _remove_quarantined(folder: Path) -> bool:
        """Remove what was set aside; False if something else lies there, which stays."""
        for path in folder.iterdir():
            if is_entry_file(path.name):
                path.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()
            return True
        return False


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(min(os.fstat(file.fileno()).st_size, MAX_SMALL_OBJECT) + 1)
    if len(data) > MAX_SMALL_OBJECT:
        raise StoreError(f"{path} is longer than the {MAX_SMALL_OBJECT} bytes that are read", lasting=True)
    return data
