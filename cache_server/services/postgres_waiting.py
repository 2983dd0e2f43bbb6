"""Waiting where several servers share a PostgreSQL database: what ends a lease on one of them wakes those on all.

One thread and one connection of each server listen, however many wait. A wake-up is part of the transaction that ends
the lease (``pg_notify``): it is sent if and only if that commits, and never before others can see what it did. One that
is lost all the same, because the listening connection broke, is made up for: after each new connection, and every few
seconds besides, all keys that are waited for are looked at together.
"""

from __future__ import annotations

import json
import random
import secrets
import selectors
import socket
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, cast

import structlog
from sqlalchemy import text

from cache_server.address import Address
from cache_server.database import entries, leases
from cache_server.database.postgres import postgres_engine, see_writable
from cache_server.services.waiting import LocalWaiters
from client.errors import WireError
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from cache_server.database.engine import Database

CHANNEL = "neff_cache_lease_ended"

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_NOTIFY = text("SELECT pg_notify(:channel, :payload)")

_log = structlog.get_logger("cache_server.waiting")


class PostgresWaiters(LocalWaiters):
    """`cache_server.services.waiting.Waiters` of one server among several."""

    def __init__(self, database: Database, *, poll_seconds: float, draw: Callable[[], float] = random.random) -> None:
        """``poll_seconds``: about how often keys that are waited for are looked at although nothing woke anybody."""
        super().__init__()
        self._database = database
        self._poll_seconds = poll_seconds
        self._draw = draw
        # our own announcements come back to us, after those who wait here were woken
        self._name = secrets.token_hex(8)
        self._engine = postgres_engine(database.url, connections=0).execution_options(isolation_level="AUTOCOMMIT")
        self._stopping = threading.Event()
        self._stop_here, self._stop_there = socket.socketpair()
        self._thread = threading.Thread(target=self._listen_forever, name="neff-cache-listen", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._stopping.set()
        self._stop_here.close()
        self._thread.join()
        self._stop_there.close()
        self._engine.dispose()

    def announce(self, session: Session, address: Address) -> None:
        """Notify the other servers with the transaction's commit."""
        session.execute(_NOTIFY, {"channel": CHANNEL, "payload": f"{self._name} {address}"})

    def look(self, addresses: Iterable[Address]) -> None:
        """Wake those who wait for a key that is published or that nobody compiles any more. Blocks."""
        by_project: defaultdict[str, list[Address]] = defaultdict(list)
        for address in addresses:
            by_project[address.project].append(address)
        for project, of_project in by_project.items():
            wanted = [(str(address.kind), address.key) for address in of_project]
            with self._database.reading() as connection:
                found = entries.documents(connection, project, wanted)
                held = set(leases.held_keys(connection, project, wanted, self._database.now(connection)))
            for address, place in zip(of_project, wanted, strict=True):
                if place in found:
                    # the entry saves each of them the look at index and store that its server's publish has just taken
                    self.wake(address, Entry.from_json(json.loads(found[place])))
                elif place not in held:
                    self.wake(address)

    def _listen_forever(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                with self._engine.connect() as connection:
                    connection.exec_driver_sql(f"LISTEN {CHANNEL}")
                    pause = _FIRST_PAUSE
                    self._listen(connection)
            except Exception as error:  # noqa: BLE001 - whatever it was, a server must not stay deaf
                _log.warning("not listening: wake-ups from other servers come late", error=str(error), again_in=pause)
                self._stopping.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _listen(self, listening: Connection) -> None:
        """Wake whoever is to be woken, until `stop` or until the connection breaks."""
        connection = cast("psycopg.Connection", listening.connection.driver_connection)
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._stop_there, selectors.EVENT_READ)
            next_poll, polls = time.monotonic(), 0
            while not self._stopping.is_set():
                left = next_poll - time.monotonic()
                if left <= 0:
                    if polls:
                        see_writable(listening)  # else those who announce do so elsewhere
                    polls += 1
                    self.look(self.waited_for())
                    next_poll = time.monotonic() + self._poll_seconds * (0.5 + self._draw())
                elif selector.select(left):
                    self.look(self._named_by(connection))

    def _named_by(self, connection: psycopg.Connection) -> set[Address]:
        """Return the keys that other servers announced and that somebody waits for here."""
        found = set()
        for notify in connection.notifies(timeout=0):
            sender, _, name = notify.payload.partition(" ")
            if sender == self._name:
                continue
            try:
                project, kind, key = name.split("/")
                address = Address.parse(project, kind, key)
            except (ValueError, WireError):
                continue  # the channel is open to everybody who may use the database
            if self.is_waited_for(address):
                found.add(address)
        return found
