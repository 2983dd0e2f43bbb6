"""What lies in the store of a shared cache, a folder or a bucket alike: for tests that look, and those that damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from client.s3.bucket import Bucket
from client.s3.url import BucketUrl

if TYPE_CHECKING:
    from pathlib import Path


class StoredFiles(Protocol):
    """Files by name; names are paths below the store's root, with ``/`` between parts."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""

    def write(self, name: str, data: bytes) -> None:
        """Replace a file's bytes."""

    def remove(self, name: str) -> None:
        """Remove a file."""


class FilesInFolder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> list[str]:
        return [path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file()]

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        (self._root / name).chmod(0o600)
        (self._root / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self._root / name).unlink()


class FilesInBucket:
    def __init__(self, url: str) -> None:
        self._bucket = Bucket(BucketUrl.parse(url))

    def names(self) -> list[str]:
        return [item.name for item in self._bucket.objects("")]

    def read(self, name: str) -> bytes:
        data = self._bucket.read(name)
        assert data is not None, name
        return data

    def write(self, name: str, data: bytes) -> None:
        self._bucket.requests.call("put_object", name, Body=data)

    def remove(self, name: str) -> None:
        self._bucket.remove(name)

    def close(self) -> None:
        self._bucket.close()
