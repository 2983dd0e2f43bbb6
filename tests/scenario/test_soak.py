"""Everything at once, for a while: hits, misses, publishes, deletes, leases, damaged uploads, collection, scrub, sweep.

No wrong byte, no 5xx that is not explained, memory flat, and at the end a clean fsck. ``make soak`` runs ten minutes of
it (or ``SOAK_SECONDS``), ``make test`` a small share. Run with ``-s`` for the figures.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cache_server import maintenance
from cache_server.settings import Settings
from client.names import MAIN_OUTPUT
from tests.cache_server.harness import build, sha256
from tests.fakes.waiting import HANG_SECONDS
from tests.support.http_calls import Answer, Caller
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cache_server.harness import Built
    from tests.support.servers import Server

CLIENTS = 6
KEYS = 120
QUOTA = 60
MIB = 1 << 20
ENVIRONMENT = {
    "NEFF_CACHE_SWEEP_SECONDS": "1",
    "NEFF_CACHE_ORPHAN_SECONDS": "3",
    "NEFF_CACHE_QUARANTINE_SECONDS": "5",
    "NEFF_CACHE_COLLECT_SECONDS": "1",
    "NEFF_CACHE_COLLECT_GRACE_SECONDS": "0",
    "NEFF_CACHE_SCRUB_SECONDS": "2",
    "NEFF_CACHE_SCRUB_BYTES_PER_SECOND": str(4 * MIB),
    "NEFF_CACHE_LEASE_TTL_SECONDS": "2",
}
QUOTA_PROBLEMS = frozenset({"quota_exceeded", "quota_full", "store_full"})


def _variant(key: int, number: int) -> Built:
    """Return a build of a key: each has other bytes, as real compilers' have, and all begin with the key's name."""
    size = 1000 * (1 + key % 7) ** 3
    seeded = random.Random(key * 1000 + number)  # noqa: S311 - bytes to tell builds apart, no secret
    return build(f"key {key}", f"key {key};".encode() + seeded.randbytes(size), log=b"log" if key % 2 else None)


@dataclass
class Tally:
    """What all clients saw."""

    calls: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, answer: Answer, expected: set[int]) -> None:
        shown = f"{what} -> {answer.status or 'connection lost'} {answer.name}".rstrip()
        with self.lock:
            self.calls[shown] += 1
            explained = answer.status == 507 and answer.name in QUOTA_PROBLEMS and what in {"upload", "publish"}
            if answer.status not in expected and not explained:
                self.unexplained.append(shown)


class Client:
    """One client: picks what to do at random, from a seed."""

    def __init__(self, number: int, server: Server, tally: Tally, end: float) -> None:
        self._name = f"client {number}"
        self._random = random.Random(number)  # noqa: S311 - a reproducible load, no secret
        self._caller = Caller(server.url, server.token, keep=True)
        self._tally = tally
        self._end = end
        self.failure: BaseException | None = None
        self._doings: list[tuple[int, Callable[[Built], None]]] = [
            (60, self._hit),
            (12, self._publish),
            (3, self._delete),
            (10, self._lease),
            (4, self._suspect),
            (3, self._break_off),
            (3, self._lie),
            (2, self._look_up),
            (1, self._scrub),
            (2, self._pin),
        ]

    def run(self) -> None:
        weights = [weight for weight, _ in self._doings]
        try:
            while time.monotonic() < self._end:
                # a few keys are asked for often, many seldom
                key = min(int(self._random.expovariate(0.05)), KEYS - 1)
                (_, do), *_ = self._random.choices(self._doings, weights)
                do(_variant(key, self._random.randrange(3)))
        except BaseException as error:  # noqa: BLE001 - the test raises it again
            self.failure = error
        finally:
            self._caller.close()

    def _call(self, what: str, method: str, path: str, body: object = None, *, expected: set[int]) -> Answer:
        answer = self._caller.call(method, path, body)
        self._tally.add(what, answer, expected)
        return answer

    def _hit(self, built: Built) -> None:
        answer = self._call("get", "GET", built.artifact, expected={200, 404})
        if answer.status == 200:
            name = built.stored[MAIN_OUTPUT].partition(b";")[0] + b";"
            if sha256(answer.body) != answer.tag or not answer.body.startswith(name):
                self._tally.wrong.append(built.artifact)

    def _publish(self, built: Built) -> None:
        for output in built.entry.outputs:
            expected = {200, 201}
            if (
                self._call(
                    "upload", "PUT", built.blob(output.name), built.stored[output.name], expected=expected
                ).status
                == 507
            ):
                return
        # 409: the sweep, or a delete of the entry, took an output meanwhile; a client uploads again
        self._call("publish", "PUT", built.path, built.entry.to_json(), expected={200, 201, 409})

    def _delete(self, built: Built) -> None:
        self._call("delete", "DELETE", built.path, expected={204, 404})

    def _lease(self, built: Built) -> None:
        body = {"holder": {"host": self._name, "pid": 1}, "wait_seconds": self._random.choice([0, 0, 0.2])}
        answer = self._call("lease", "POST", built.lease, body, expected={200})
        value = answer.json()
        if value.get("state") != "granted":
            return
        if self._random.random() < 0.5:
            self._publish(built)
        elif self._random.random() < 0.8:
            failure = {"class": "transient", "text": "soak", "log": ""}
            path = f"{built.lease}/release"
            self._call("release", "POST", path, {"token": value["token"], "failure": failure}, expected={200, 409})

    def _suspect(self, built: Built) -> None:
        digest = {"sha256": built.entry.outputs[0].sha256}
        # 422: another build of the key stands there
        self._call("suspect", "POST", f"{built.path}/suspect", digest, expected={200, 422, 429})

    def _break_off(self, built: Built) -> None:
        data = built.stored[MAIN_OUTPUT]
        head = f"PUT {built.blob()} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._caller.token}\r\n"
        with (
            contextlib.suppress(OSError),
            socket.create_connection(self._caller.address, timeout=HANG_SECONDS) as connection,
        ):
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data[: len(data) // 2])

    def _lie(self, built: Built) -> None:
        answer = self._caller.call("PUT", built.blob(), b"other bytes")
        self._tally.add("upload of other bytes", answer, {422, 507})

    def _look_up(self, built: Built) -> None:
        keys = [{"kind": "graph", "key": _variant(key, 0).entry.key} for key in range(0, KEYS, 10)]
        self._call("look-up", "POST", "/v1/default/lookup", {"keys": keys}, expected={200})

    def _scrub(self, _built: Built) -> None:
        self._call("scrub", "POST", "/admin/v1/scrub", {}, expected={202})

    def _pin(self, built: Built) -> None:
        method = self._random.choice(["PUT", "DELETE", "DELETE"])
        path = f"/v1/default/pins/entries/graph/{built.entry.key}"
        self._call(f"pin {method}", method, path, expected={200, 201, 204, 404})


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


@pytest.mark.parametrize(
    "seconds",
    [
        6,
        pytest.param(
            float(os.environ.get("SOAK_SECONDS", "600")), marks=[pytest.mark.soak, pytest.mark.timeout(3600)], id="full"
        ),
    ],
)
def test_mixed_load_serves_no_wrong_byte_and_leaves_nothing_behind(tmp_path: Path, seconds: float) -> None:
    """OPEN-018: writers of different builds of one key. OPEN-031: readers beside a collector."""
    tally = Tally()
    with running_server(tmp_path, environment=ENVIRONMENT) as server:
        admin = Caller(server.url, server.token)
        assert admin.call("PUT", "/admin/v1/projects/default/quota", {"max_entries": QUOTA}).status == 204
        begin = time.monotonic()
        clients = [Client(number, server, tally, begin + seconds) for number in range(CLIENTS)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        memory: list[int] = []
        while any(thread.is_alive() for thread in threads):
            memory.append(_resident(server.process.pid))
            time.sleep(min(1.0, seconds / 20))
        for thread in threads:
            thread.join()
        metrics = admin.call("GET", "/metrics").body.decode()
        assert server.stop() == 0
    assert [client.failure for client in clients if client.failure is not None] == []
    report = maintenance.check(Settings(data_dir=server.data), deep=True)

    warm = memory[len(memory) // 5]
    lines = [f"  {count:8}  {what}" for what, count in sorted(tally.calls.items())]
    lines += [
        f"  memory {warm / MIB:.1f} MiB after a fifth of the time, {memory[-1] / MIB:.1f} MiB at the end",
        *(
            f"  {line}"
            for line in metrics.splitlines()
            if line.startswith(("neff_cache_scrubbed", "neff_cache_collected")) and "_created" not in line
        ),
        f"  {report.entries} entries at the end; fsck: {len(report.findings)} findings",
    ]
    print("", f"{sum(tally.calls.values())} calls in {seconds:.0f} s:", *lines, sep="\n")  # noqa: T201 - for -s
    assert tally.wrong == []
    assert tally.unexplained == []
    assert report.findings == []
    assert memory[-1] < warm * 1.2 + 16 * MIB
    assert sum(tally.calls.values()) > 100
