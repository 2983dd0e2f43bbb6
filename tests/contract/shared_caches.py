"""The shared caches that the contract of transports is run against: a folder, and the real server over HTTP."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from client.layout import entry_folder, output_file
from client.transports import open_transport

if TYPE_CHECKING:
    from pathlib import Path

    from client.transports.base import Transport
    from client.wire import Entry
    from tests.support.servers import Server


class SharedCache(Protocol):
    """What a test does to a shared cache besides using it."""

    name: str
    root: Path

    def open(self, project: str = "default") -> Transport:
        """Return a transport as another process would have it; closed at the end."""

    def run_out(self, entry: Entry) -> None:
        """Let the key's lease run out, as if its holder had died."""


@dataclass
class Folder:
    root: Path
    closing: ExitStack
    name: str = "folder"

    def open(self, project: str = "default") -> Transport:
        transport = open_transport(str(self.root), project, {})
        self.closing.callback(transport.close)
        return transport

    def run_out(self, entry: Entry) -> None:
        folder = self.root / entry_folder(entry.project, entry.kind, entry.key)
        newest = max(folder.glob("lease-*.json"))
        long_ago = time.time() - 1000
        os.utime(newest, (long_ago, long_ago))


@dataclass
class HttpServer:
    server: Server
    closing: ExitStack
    name: str = "http"
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.environment = {"NEURON_CACHE_TOKEN": self.server.token}

    @property
    def root(self) -> Path:
        return self.server.data / "store"

    def open(self, project: str = "default") -> Transport:
        transport = open_transport(self.server.url, project, self.environment)
        self.closing.callback(transport.close)
        return transport

    def run_out(self, entry: Entry) -> None:
        with closing(sqlite3.connect(self.server.data / "cache.db", timeout=30)) as database:
            changed = database.execute("UPDATE leases SET expires = 1 WHERE key = ?", (entry.key,)).rowcount
            database.commit()
        assert changed == 1


def stored(cache: SharedCache, entry: Entry, name: str) -> Path:
    """Return the file of an output, wherever the shared cache keeps it."""
    output = entry.output(name)
    assert output is not None
    folder = cache.root / entry_folder(entry.project, entry.kind, entry.key)
    return folder / output_file(output.sha256, output.encoding)
