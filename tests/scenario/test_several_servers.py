"""Three servers on one PostgreSQL and one bucket, behind a balancer: a cluster compiles each key once.

The full figures (64 processes, 40 keys) are for `make soak`; a small share of them runs each time.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from client.wire import Entry
from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.balancer import balanced
from tests.support.http_calls import Caller
from tests.support.jobs import job_environment
from tests.support.postgres import postgres
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server
from tests.support.stored import FilesInBucket

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.servers import Server

SERVERS = 3
LEASE_SECONDS = 20
CLIENT = Path(__file__).resolve().parents[1] / "fakes" / "compiling_client.py"
SIZES = [
    pytest.param(8, 6, id="8-processes-6-keys"),
    pytest.param(64, 40, id="64-processes-40-keys", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
]


@dataclass
class Cluster:
    """Servers that share everything but their process."""

    servers: list[Server]
    files: FilesInBucket
    database: str

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a counter over the servers that live."""
        shown = name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"
        total = 0.0
        for server in self.servers:
            if server.process.poll() is None:
                request = urllib.request.Request(
                    f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"}
                )
                with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
                    lines = answer.read().decode().splitlines()
                total += sum(float(line.removeprefix(shown)) for line in lines if line.startswith(shown))
        return total

    def rows(self, statement: str) -> list[Any]:
        engine = create_engine(self.database.replace("postgresql:", "postgresql+psycopg:"))
        try:
            with engine.connect() as connection:
                return list(connection.execute(text(statement)))
        finally:
            engine.dispose()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    use_credentials(monkeypatch)
    bucket = seaweedfs().new_url()
    environment = {
        "NEFF_CACHE_LEASE_TTL_SECONDS": str(LEASE_SECONDS),
        "NEFF_CACHE_COLLECT_GRACE_SECONDS": "0",  # entries of a test are young
    }
    with ExitStack() as stack:
        database = stack.enter_context(postgres().new_database())
        arguments = ("--store", bucket, "--database", database)
        servers = [
            stack.enter_context(running_server(tmp_path / "server", *arguments, environment=environment))
            for _ in range(SERVERS)
        ]
        files = FilesInBucket(bucket)
        stack.callback(files.close)
        yield Cluster(servers, files, database)


@contextmanager
def clients(
    number: int, keys: int, environment: Mapping[str, str], folder: Path, *, size: int, seconds: float
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes on a node each, all ready to begin."""
    with ExitStack() as stack:
        processes = []
        for one in range(number):
            errors = stack.enter_context((folder / f"client-{one}.err").open("w"))
            process = subprocess.Popen(
                [sys.executable, CLIENT, str(keys), str(size), str(seconds), str(one)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**environment, "NEURON_CACHE_NODE_DIR": str(folder / f"node-{one}")},
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield processes


def results(processes: list[subprocess.Popen[str]], folder: Path) -> list[dict[str, Any]]:
    """Let all begin at once, and return what each found."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = []
    for number, process in enumerate(processes):
        output, _ = process.communicate(timeout=300)
        complaint = (folder / f"client-{number}.err").read_text()
        assert process.returncode == 0, complaint
        found.append({**json.loads(output), "complaint": complaint})
    return found


def check_published_once(cluster: Cluster, keys: int) -> dict[str, Entry]:
    """Return the entries after seeing that each key has one, whole, and that database and bucket agree."""
    names = cluster.files.names()
    stored = [Entry.from_json(json.loads(cluster.files.read(name))) for name in names if name.endswith("/entry.json")]
    assert len(stored) == keys
    for entry in stored:
        folder = next(name.removesuffix("entry.json") for name in names if name.endswith(f"{entry.key}/entry.json"))
        for output in entry.outputs:
            data = cluster.files.read(f"{folder}{output.sha256}{'.zst' if output.encoding == 'zstd' else ''}")
            assert len(data) == output.stored_size
            if output.encoding == "identity":
                assert hashlib.sha256(data).hexdigest() == output.sha256
    assert {(entry.key, "ready") for entry in stored} == set(cluster.rows("SELECT key, state FROM entries"))
    assert cluster.rows("SELECT key FROM leases WHERE state = 'held'") == []
    return {entry.key: entry for entry in stored}


def report(processes: int, keys: int, compiled: Counter[int], slowest: float) -> None:
    line = f"{processes} processes, {keys} keys: {sum(compiled.values())} compiles, slowest key {slowest:.1f} s"
    print(f"\n{line}")  # noqa: T201 - the figures that -s shows


@pytest.mark.soak  # the test below has a cold cluster too, and a harder time
@pytest.mark.parametrize(("processes", "keys"), SIZES)
def test_a_cold_cluster_compiles_each_key_once(cluster: Cluster, tmp_path: Path, processes: int, keys: int) -> None:
    with balanced([server.url for server in cluster.servers]) as balancer:
        environment = job_environment(tmp_path / "unused", balancer.url, cluster.servers[0].config)
        with clients(processes, keys, environment, tmp_path, size=20_000, seconds=0.05) as started:
            found = results(started, tmp_path)
    compiled = Counter(key for one in found for key in one["compiled"])
    assert compiled == dict.fromkeys(range(keys), 1)
    entries = check_published_once(cluster, keys)
    # every process runs the same bytes
    digests = {key: output.sha256 for key, entry in entries.items() if (output := entry.output()) is not None}
    assert all(one["digests"] == digests for one in found)
    assert not [one["complaint"] for one in found if "cannot be used" in one["complaint"]]
    assert cluster.metric("neff_cache_publishes_total", result="created") == keys
    slowest = max(one["slowest"] for one in found)
    report(processes, keys, compiled, slowest)


@pytest.mark.parametrize(("processes", "keys"), SIZES)
def test_a_server_that_dies_amid_uploads_costs_no_entry_and_no_long_wait(
    cluster: Cluster, tmp_path: Path, processes: int, keys: int
) -> None:
    size = 300_000
    killed: list[Server] = []

    def sent(server: int, so_far: int) -> None:
        # half of the first output has reached a server, the other half never will
        if so_far > size // 2 and not killed:
            killed.append(cluster.servers[server])
            killed[0].process.kill()

    with balanced([server.url for server in cluster.servers], sent) as balancer:
        environment = job_environment(tmp_path / "unused", balancer.url, cluster.servers[0].config)
        with clients(processes, keys, environment, tmp_path, size=size, seconds=0.05) as started:
            found = results(started, tmp_path)
    assert [server.process.wait(HANG_SECONDS) for server in killed] == [-signal.SIGKILL]
    compiled = Counter(key for one in found for key in one["compiled"])
    entries = check_published_once(cluster, keys)
    slowest = max(one["slowest"] for one in found)
    report(processes, keys, compiled, slowest)
    assert set(compiled) == set(range(keys))
    # a grant may die on its way with the server that gave it: it is waited for until it runs out, and no longer, or
    # the limit of `results` would have passed
    assert all(set(one["digests"]) == set(entries) for one in found)


@pytest.mark.soak
def test_a_collection_on_a_bucket_takes_entries_whole_and_readers_see_misses(cluster: Cluster, tmp_path: Path) -> None:
    keys, kept = 6, 2
    environment = job_environment(tmp_path / "unused", cluster.servers[0].url, cluster.servers[0].config)
    with clients(1, keys, environment, tmp_path, size=30_000, seconds=0) as started:
        results(started, tmp_path)
    entries = check_published_once(cluster, keys)
    callers = [Caller(server.url, server.token) for server in cluster.servers]
    seen: set[int] = set()
    done = threading.Event()

    def read(caller: Caller) -> None:
        while not done.is_set():
            for entry in entries.values():
                # not by the artifact's address: a program that is in use would be spared
                output = f"/v1/default/{entry.kind}/entries/{entry.key}/blobs/{entry.outputs[0].sha256}"
                seen.add(caller.call("GET", output).status)

    readers = [threading.Thread(target=read, args=(Caller(server.url, server.token),)) for server in cluster.servers]
    try:
        for reader in readers:
            reader.start()
        limit = {"max_entries": kept}
        assert callers[0].call("PUT", "/admin/v1/projects/default/quota", limit).status == 204
        with ThreadPoolExecutor(SERVERS) as pool:
            asked = list(pool.map(lambda caller: caller.call("POST", "/admin/v1/collect", {}), callers))
        wait_until(lambda: 404 in seen, "a reader sees a miss")
    finally:
        done.set()
        for reader in readers:
            reader.join(HANG_SECONDS)
    assert {answer.status for answer in asked} <= {200, 409}
    assert seen == {200, 404}
    left = check_published_once(cluster, int(cluster.rows("SELECT count(*) FROM entries")[0][0]))
    assert 0 < len(left) <= kept
    # nothing of the others is left in the bucket, and what is left is served by every server
    assert {name.split("/")[3] for name in cluster.files.names() if name.startswith("default/")} == set(left)
    for caller in callers:
        for entry in entries.values():
            status = caller.call("GET", f"/v1/default/{entry.kind}/artifacts/{entry.key}").status
            assert status == (200 if entry.key in left else 404)
