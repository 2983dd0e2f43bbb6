"""The shared caches that the contract of transports is run against: a folder, a bucket, the real server over HTTP."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from client.layout import entry_folder, output_file
from client.transports import open_transport
from tests.fakes.waiting import HANG_SECONDS
from tests.support.stored import FilesInBucket, FilesInFolder

if TYPE_CHECKING:
    from pathlib import Path

    from client.transports.base import Transport
    from client.wire import Entry
    from tests.support.s3 import S3Server
    from tests.support.servers import Server
    from tests.support.stored import StoredFiles

_SHORT_LEASE_SECONDS = 2.0
"""Longer than a step of a test takes on a busy machine."""


class SharedCache(Protocol):
    """What a test does to a shared cache besides using it."""

    name: str

    @property
    def files(self) -> StoredFiles:
        """What lies in the store."""

    def open(self, project: str = "default") -> Transport:
        """Return a transport as another process would have it; closed at the end."""

    def run_out(self, entry: Entry) -> None:
        """Let the key's lease run out, as if its holder had died."""


@dataclass
class Folder:
    root: Path
    closing: ExitStack
    name: str = "folder"

    @property
    def files(self) -> StoredFiles:
        return FilesInFolder(self.root)

    def open(self, project: str = "default") -> Transport:
        transport = open_transport(str(self.root), project, {})
        self.closing.callback(transport.close)
        return transport

    def run_out(self, entry: Entry) -> None:
        folder = self.root / entry_folder(entry.project, entry.kind, entry.key)
        newest = max(folder.glob("lease-*.json"))
        long_ago = time.time() - 1000
        os.utime(newest, (long_ago, long_ago))


class S3Bucket:
    """A prefix of a real S3 server's bucket that nobody else uses."""

    name = "s3"

    def __init__(self, server: S3Server, closing: ExitStack) -> None:
        self.url = server.new_url()
        self.files = FilesInBucket(self.url)
        self._closing = closing
        closing.callback(self.files.close)

    def open(self, project: str = "default") -> Transport:
        transport = open_transport(self.url, project, {})
        self._closing.callback(transport.close)
        return transport

    def run_out(self, entry: Entry) -> None:
        """Shorten the lease's time to live, and wait: nobody can change when an object was written."""
        folder = entry_folder(entry.project, entry.kind, entry.key)
        newest = max(name for name in self.files.names() if name.startswith(f"{folder}/lease-"))
        lease = json.loads(self.files.read(newest))
        self.files.write(newest, json.dumps({**lease, "ttl_seconds": _SHORT_LEASE_SECONDS}).encode())
        time.sleep(_SHORT_LEASE_SECONDS + 1.1)  # S3 tells times in whole seconds


@dataclass
class HttpServer:
    server: Server
    closing: ExitStack
    name: str = "http"
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.environment = {"NEURON_CACHE_TOKEN": self.server.token}

    @property
    def files(self) -> StoredFiles:
        return FilesInFolder(self.server.data / "store")

    def open(self, project: str = "default") -> Transport:
        transport = open_transport(self.server.url, project, self.environment)
        self.closing.callback(transport.close)
        return transport

    def run_out(self, entry: Entry) -> None:
        with closing(sqlite3.connect(self.server.data / "cache.db", timeout=HANG_SECONDS)) as database:
            changed = database.execute("UPDATE leases SET expires = 1 WHERE key = ?", (entry.key,)).rowcount
            database.commit()
        assert changed == 1


def stored(entry: Entry, name: str) -> str:
    """Return the name in the store of an output's file."""
    output = entry.output(name)
    assert output is not None
    return f"{entry_folder(entry.project, entry.kind, entry.key)}/{output_file(output.sha256, output.encoding)}"
